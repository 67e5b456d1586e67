"""Who may ask the dashboard: the one module that lets a request in.

It guarantees: nothing but loopback is listened on unless somebody said so; whoever comes over the network shows a
token; a request whose ``Host`` is none of ours is turned away (DNS rebinding), and so is one that another site's page
makes (``Origin``, ``Sec-Fetch-Site``), but for a link that the user clicks; no page of ours stands in a frame or is
kept in a cache; a token that came in an address is taken out of it.
"""

import hmac
import ipaddress
import secrets
import socket
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from results.errors import NotServed

COOKIE = "bakeoff_token"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PAGE_POLICY = "frame-ancestors 'none'"  # the page's own policy stands in the page
_DATA_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


class AccessPolicy(msgspec.Struct, frozen=True):
    """What is let in.

    Attributes:
        host: address that is listened on.
        names: values of ``Host`` that are ours, without the port, in lower case.
        token: that every request must show; None for no token.
    """

    host: str
    names: frozenset[str]
    token: str | None = None


def access_policy(
    host: str, *, network: bool = False, names: tuple[str, ...] = (), token: str | None = None
) -> AccessPolicy:
    """The access of an address.

    Args:
        host: address or name to listen on.
        network: whether an address that other machines reach was asked for in so many words.
        names: further values of ``Host`` that are ours: what a proxy or the DNS calls this machine.
        token: that every request must show; the default is none on loopback and one drawn by lot beyond it.

    Raises:
        NotServed: the address is no loopback one, and nobody said that it may be.
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
    """The middleware that stands before every route."""

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
    """Whether a page of ours asks, or a user: by typing the address or by clicking a link to it.

    Images, frames and prefetches of other sites (another port of this host is another site) would fold logs on the
    machine that is measuring. Programs and old browsers do not say what asks.
    """
    headers = request.headers
    if headers.get("Sec-Fetch-Site", "none") in {"none", "same-origin"}:
        return True
    told = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest"), headers.get("Sec-Fetch-User"))
    return told == ("navigate", "document", "?1") and "Sec-Purpose" not in headers


def _without_token(request: web.Request) -> web.Response | None:
    """Sends a browser that shows the token in an address to the same address without it, for its history.

    None where the address has no token, or a program asks, which keeps no cookie.
    """
    if "token" not in request.query or "text/html" not in request.headers.get("Accept", ""):
        return None
    query = [(name, value) for name, value in request.query.items() if name != "token"]
    address = "/" + request.rel_url.raw_path.lstrip("/")  # two slashes would lead to another host
    return web.Response(status=303, headers={"Location": f"{address}?{urlencode(query)}" if query else address})


def _is_tls(request: web.Request) -> bool:
    """Whether a browser came over TLS. Anybody may send the proxy's header: it only makes a cookie stricter."""
    return request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https"


def _shows(request: web.Request, token: str) -> bool:
    shown = (
        request.query.get("token"),
        request.cookies.get(COOKIE),
        request.headers.get("Authorization", "").removeprefix("Bearer "),
    )
    return any(hmac.compare_digest(one.encode(), token.encode()) for one in shown if one)


def _dress(response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    is_page = response.content_type == "text/html"
    response.headers["Content-Security-Policy"] = _PAGE_POLICY if is_page else _DATA_POLICY


def _say(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")


def _name_of(host: str) -> str:
    """``Host`` without its port; what is no host at all stays as it is, and is none of ours."""
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() and name else host).lower()


def _as_host(address: str) -> str:
    return f"[{address}]".lower() if ":" in address else address.lower()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
