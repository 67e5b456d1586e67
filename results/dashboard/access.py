"""Access control of the dashboard; the only module that admits requests.

Guarantees: it listens on loopback only, unless the user allows more; requests over the network must present a token;
requests with a foreign ``Host`` (DNS rebinding) and requests made by other sites' pages (``Origin``,
``Sec-Fetch-Site``) are rejected, except for links that the user clicks; pages cannot be framed or cached; a token in an
address is removed from it.
"""

import hmac
import ipaddress
import secrets
import socket
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bakeoff.results.errors import NotServed

COOKIE = "bakeoff_token"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PAGE_POLICY = "frame-ancestors 'none'"  # the rest of its policy is in the page
_DATA_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


class AccessPolicy(msgspec.Struct, frozen=True):
    """Which requests are admitted.

    Attributes:
        host: address to listen on.
        names: accepted values of ``Host``, without port, in lower case.
        token: token that every request must present; None for none.
    """

    host: str
    names: frozenset[str]
    token: str | None = None


def access_policy(
    host: str, *, network: bool = False, names: tuple[str, ...] = (), token: str | None = None
) -> AccessPolicy:
    """Build the access policy for an address.

    Args:
        host: address or name to listen on.
        network: whether listening on an address that other machines can reach was explicitly allowed.
        names: further accepted values of ``Host``, such as the names that a proxy or the DNS uses for this machine.
        token: token that every request must present; by default none on loopback and a random one otherwise.

    Raises:
        NotServed: the address is not loopback, and ``network`` is not set.
    """
    if _is_loopback(host):
        return AccessPolicy(host, _LOOPBACK | {_as_host(host)} | {name.lower() for name in names}, token)
    if not network:
        raise NotServed(
            f"{host} can be reached from other machines; add --network if that is wanted, and keep the token"
        )
    own = {_as_host(host), socket.gethostname().lower(), *(name.lower() for name in names)}
    return AccessPolicy(host, _LOOPBACK | own, token or secrets.token_urlsafe(24))


def guard(access: AccessPolicy) -> Middleware:
    """Build the middleware that checks every request."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = _refusal(request, access)
        bare = _without_token(request) if access.token is not None and refused is None else None
        try:
            response = refused or bare or await handler(request)
        except web.HTTPException as error:
            _dress(error)
            raise
        _dress(response)
        if bare is not None and access.token is not None:
            # Lax, so that a link in a chat opens; scripts of other sites are turned away by Sec-Fetch-Site.
            response.set_cookie(COOKIE, access.token, httponly=True, samesite="Lax", secure=_is_tls(request))
        return response

    return guarded


def _refusal(request: web.Request, access: AccessPolicy) -> web.Response | None:
    host = request.headers.get("Host", "")
    if _name_of(host) not in access.names:
        return _say(403, f"403: this dashboard does not answer for the host {host!r}; see --name")
    origin = request.headers.get("Origin")
    if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
        return _say(403, "403: another site's page may not ask this dashboard")
    if not _is_meant(request):
        return _say(403, "403: another site's page may not ask this dashboard; open its address yourself")
    if access.token is not None and not _shows(request, access.token):
        return _say(401, "401: show the token: open the address that the dashboard printed, with its ?token=")
    return None


def _is_meant(request: web.Request) -> bool:
    """Whether the request comes from one of our pages, or from the user typing the address or clicking a link.

    Images, frames and prefetches of other sites (including other ports of this host) would make the measuring machine
    process logs. Programs and old browsers do not send these headers.
    """
    headers = request.headers
    if headers.get("Sec-Fetch-Site", "none") in {"none", "same-origin"}:
        return True
    navigation = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest"), headers.get("Sec-Fetch-User"))
    return navigation == ("navigate", "document", "?1") and "Sec-Purpose" not in headers


def _without_token(request: web.Request) -> web.Response | None:
    """Redirect a browser from an address with a token to the same address without it, to keep it out of its history.

    None if the address has no token, or if the client is a program, which keeps no cookies.
    """
    if "token" not in request.query or "text/html" not in request.headers.get("Accept", ""):
        return None
    query = [(name, value) for name, value in request.query.items() if name != "token"]
    address = "/" + request.rel_url.raw_path.lstrip("/")  # two slashes would lead to another host
    return web.Response(status=303, headers={"Location": f"{address}?{urlencode(query)}" if query else address})


def _is_tls(request: web.Request) -> bool:
    """Whether the browser uses TLS. A forged proxy header only makes the cookie stricter."""
    return request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https"


def _shows(request: web.Request, token: str) -> bool:
    tokens = (
        request.query.get("token"),
        request.cookies.get(COOKIE),
        request.headers.get("Authorization", "").removeprefix("Bearer "),
    )
    return any(
        hmac.compare_digest(candidate.encode("utf-8", "surrogateescape"), token.encode())
        for candidate in tokens
        if candidate
    )


def _dress(response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    is_page = response.content_type == "text/html"
    response.headers["Content-Security-Policy"] = _PAGE_POLICY if is_page else _DATA_POLICY


def _say(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")


def _name_of(host: str) -> str:
    """``Host`` without its port; anything malformed is returned unchanged and does not match."""
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() and name else host).lower()


def _as_host(address: str) -> str:
    return f"[{address}]".lower() if ":" in address else address.lower()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
