"""Who may use the server: holders of its key, and no pages of other sites in a user's browser."""

import hmac
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bakeoff.reference_engine.errors import RequestError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
KEY_VARIABLE = "REFERENCE_ENGINE_API_KEY"


def access_check(host: str, api_key: str | None) -> Middleware:
    """A middleware that refuses requests which may not use the server.

    A browser tells with ``Origin`` which site's page sends a request; without this check any page that a user visits
    could use a server on the user's machine, although it could not read the answers. A page counts as the server's own
    by a name of this machine and its port: other names may have been made to lead here (DNS rebinding).

    Args:
        host: address that the server listens at.
        api_key: that requests to ``/v1`` and all commands must carry as a bearer token; None for none. Routes that only
            tell about the server stay open, as in vLLM.
    """
    hosts = {*_LOOPBACK, host}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        place = None if origin is None else _place(origin)
        if place is not None and (place[0] not in hosts or place != _place(f"http://{request.host}")):
            raise RequestError(
                f"pages of {origin!a} may not use this server; send the request without a browser", status=403
            )
        if api_key is not None and (request.path.startswith("/v1/") or request.method not in {"GET", "HEAD"}):
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            matches = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), api_key.encode())
            if scheme.lower() != "bearer" or not matches:
                raise RequestError(
                    "the key is missing or wrong; send it in the header Authorization: Bearer KEY",
                    status=401,
                    code="invalid_api_key",
                )
        return await handler(request)

    return check


def _place(url: str) -> tuple[str | None, int | None]:
    """Host and port of an address; none of one that cannot be read."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None, None
    return parts.hostname, port or (443 if parts.scheme == "https" else 80)
