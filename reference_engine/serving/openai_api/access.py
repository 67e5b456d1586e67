"""Who may use the server: holders of its key, and no pages of other sites in a user's browser."""

import hmac
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bakeoff.reference_engine.errors import RequestError

KEY_VARIABLE = "REFERENCE_ENGINE_API_KEY"


def access_check(api_key: str | None) -> Middleware:
    """A middleware that refuses requests which may not use the server.

    A browser tells with ``Origin`` which site's page sends a request; without this check any page that a user visits
    could use a server on the user's machine, although it could not read the answers.

    Args:
        api_key: that requests to ``/v1`` and all commands must carry as a bearer token; None for none. Health, version
            and metrics stay open, as in vLLM.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise RequestError(
                f"pages of {origin} may not use this server; send the request without a browser", status=403
            )
        if api_key is not None and (request.path.startswith("/v1/") or request.method != "GET"):
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), api_key.encode()):
                raise RequestError(
                    "the key is missing or wrong; send it in the header Authorization: Bearer KEY",
                    status=401,
                    code="invalid_api_key",
                )
        return await handler(request)

    return check
