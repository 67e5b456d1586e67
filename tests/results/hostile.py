"""Texts that try to run script, break out of their element, or drive the terminal."""

XSS = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "<svg onload=alert(4)>",
    '"><script>alert(5)</script>',
    "' onmouseover='alert(6)' x='",
    '" autofocus onfocus="alert(7)',
    "javascript:alert(8)",
    "<iframe src=javascript:alert(9)></iframe>",
    "<!--<script>alert(10)//-->",
    "]]><script>alert(11)</script>",
    "</title><script>alert(12)</script>",
    "</style><script>alert(13)</script>",
    "</svg><script>alert(14)</script>",
    "<math><mi xlink:href='javascript:alert(15)'>x</mi></math>",
    "{{ 7*7 }}{% raw %}",
    "${alert(17)}`",
    "\u2028alert(18)\u2029",
    "<a href='data:text/html,<script>alert(19)</script>'>x</a>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16") + "<b onclick=alert(22)>",
)
TERMINAL = ("\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x9b31m", "\r overwritten", "\u202e reversed", "[red]markup[/red]")
