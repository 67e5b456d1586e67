"""Errors as OpenAI's error object, with the HTTP status that fits the kind of error."""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from bakeoff.reference_engine.errors import EngineUnavailableError, QueueFullError, RequestError
from bakeoff.reference_engine.serving.openai_api.answers import ErrorAnswer, ErrorBody, encode

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


def failure_answer(error: Exception) -> ErrorAnswer:
    """The error object of an exception; foreign exceptions are reported without details."""
    if isinstance(error, RequestError):
        kind = _TYPES.get(error.status, "invalid_request_error")
        return ErrorAnswer(ErrorBody(str(error), kind, error.param, error.code))
    if isinstance(error, EngineUnavailableError):
        return ErrorAnswer(ErrorBody(str(error), _TYPES[503], None, "engine_unavailable"))
    return ErrorAnswer(ErrorBody("an error inside the server; its log has the details", "server_error", None, None))


def _status(error: Exception) -> int:
    if isinstance(error, RequestError):
        return error.status
    return 503 if isinstance(error, EngineUnavailableError) else 500


def unknown_model(name: str, served: str) -> RequestError:
    """The refusal of a model that this server does not have."""
    return RequestError(
        f"the model {name!r} does not exist here; this server has {served!r}",
        status=404,
        param="model",
        code="model_not_found",
    )


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every exception of a handler into an OpenAI error."""
    headers: dict[str, str] = {}
    is_readable = True
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        headers |= {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}  # required in a 405
        failure: Exception = RequestError(f"{error.reason}: {request.method} {request.path}", status=error.status)
    except (RequestError, EngineUnavailableError) as error:
        failure = error
    except web.RequestPayloadError as error:
        failure = RequestError(f"the body cannot be read: {error}; its Content-Encoding must be that of its bytes")
        is_readable = False
    except ConnectionResetError:
        raise  # the client has disconnected; aiohttp closes the connection
    except Exception as error:  # noqa: BLE001 (a bug of ours must still be an answer)
        _log.exception("%s %s failed", request.method, request.path)
        failure = error
    if isinstance(failure, RequestError) and failure.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(failure, EngineUnavailableError | QueueFullError):
        headers["Retry-After"] = "1"
    # Its traceback holds this frame, and so what the handler held: a body of megabytes, until a full collection.
    failure = failure.with_traceback(None)
    body = encode(failure_answer(failure))
    response = web.Response(body=body, status=_status(failure), content_type="application/json", headers=headers)
    if not is_readable:
        response.force_close()  # aiohttp reads what is left of a body, and fails again
    return response
