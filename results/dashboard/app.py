"""Routes of the dashboard and its server. All routes are read-only.

Runs are looked up by their id in the index: no part of an address becomes part of a path.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from bakeoff.results.dashboard import prometheus
from bakeoff.results.dashboard.access import AccessPolicy, guard
from bakeoff.results.dashboard.addresses import report_at
from bakeoff.results.dashboard.compare_page import compare_html
from bakeoff.results.dashboard.history_page import history_page
from bakeoff.results.dashboard.live import Live
from bakeoff.results.dashboard.pages import message_html, report_html, served
from bakeoff.results.dashboard.run_list import list_page, query_of
from bakeoff.results.dashboard.watcher import SCAN_S, Watcher
from bakeoff.results.errors import NotExportable, NotServed, ResultsError
from bakeoff.results.export.tables import Format, Table, table
from bakeoff.results.index import Index, RunFacts
from bakeoff.results.log.store import RunFolder
from bakeoff.results.run.run import load

WATCHER = web.AppKey("watcher", Watcher)
_TYPES = {Format.CSV: "text/csv", Format.PARQUET: "application/vnd.apache.parquet", Format.JSON: "application/json"}
_MAX_LISTED = 10_000
_CHOOSE = "choose two runs in the list to compare them"
routes = web.RouteTableDef()


def make_app(index: Index, access: AccessPolicy, *, scan_s: float = SCAN_S) -> web.Application:
    """Build the application.

    Args:
        index: of the folder of runs; closed with the application.
        access: access policy.
        scan_s: approximate maximum age of the index, in seconds, when a request is answered.
    """
    app = web.Application(middlewares=[guard(access), _error_pages])
    app.add_routes(routes)

    async def watched(app: web.Application) -> AsyncIterator[None]:
        async with Watcher(index, scan_s).running() as watcher:
            app[WATCHER] = watcher
            yield
        index.close()

    app.cleanup_ctx.append(watched)
    return app


async def serve(
    root: Path, access: AccessPolicy, port: int, *, ready: Callable[[str], None], rebuild: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        root: folder of runs.
        access: access policy and host.
        port: 0 for any free port.
        ready: called with the URL to open, which includes the token if there is one.
        rebuild: rebuild the index.

    Raises:
        RunNotFound: the folder does not exist.
        NotServed: the port is in use or not permitted.
    """
    index = Index(root)
    if rebuild:
        index.forget()
    runner = web.AppRunner(make_app(index, access), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, access.host, port)
        try:
            await site.start()
        except OSError as error:
            raise NotServed(
                f"cannot listen on {access.host}:{port}: {error.strerror}; choose another --port"
            ) from error
        ready(_address(runner, access))
        await _stopped()
    finally:
        await runner.cleanup()


def _address(runner: web.AppRunner, access: AccessPolicy) -> str:
    port = runner.addresses[0][1]
    host = f"[{access.host}]" if ":" in access.host else access.host
    return f"http://{host}:{port}/" + (f"?token={quote(access.token)}" if access.token else "")


async def _stopped() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


@web.middleware
async def _error_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into a page, or into one line for programs."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error_response(request, error.status, error.text or error.reason)
    except NotExportable as error:
        return _error_response(request, 404, str(error))
    except ResultsError as error:
        return _error_response(request, 409, str(error))


def _error_response(request: web.Request, status: int, text: str) -> web.Response:
    line = text if text.startswith(str(status)) else f"{status}: {text}"
    if "text/html" not in request.headers.get("Accept", ""):
        return web.Response(status=status, text=line + "\n")
    page = message_html("Nothing here" if status == 404 else "It cannot be shown", line, [("/", "All runs")])
    return web.Response(status=status, text=page, content_type="text/html")


@routes.get("/")
async def runs(request: web.Request) -> web.Response:
    """List of runs."""
    index = await _fresh_index(request)
    page = await asyncio.to_thread(list_page, index, dict(request.query))
    return _html(await asyncio.to_thread(served, "list.html", page, "list.js"))


@routes.get("/runs/{run}/report")
async def report(request: web.Request) -> web.Response:
    """Report of a run."""
    watcher, path, stamp = await _indexed(request)
    return _html(await watcher.rendered(("report", path.name, stamp), report_html, path))


@routes.get("/runs/{run}/live")
async def live_page(request: web.Request) -> web.Response:
    """Live page of a running run."""
    state, path = await _live(request)
    page = {"name": state.name, "live": state, "report": report_at(path.name)}
    return _html(served("live.html", page, "live.js"))


@routes.get("/runs/{run}/export/{table}.{format}")
async def export(request: web.Request) -> web.Response:
    """One table of a run as a file."""
    _, path, _ = await _indexed(request)
    which, how = request.match_info["table"], request.match_info["format"]
    if which not in set(Table) or how not in set(Format):
        raise web.HTTPNotFound(text=f"there is {', '.join(Table)}, each as {', '.join(Format)}")
    data = await asyncio.to_thread(lambda: table(load(path), Table(which), Format(how)))
    name = f"{which}.{how}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return web.Response(body=data, content_type=_TYPES[Format(how)], headers=headers)


@routes.get("/compare")
async def compare(request: web.Request) -> web.Response:
    """Comparison of two sides."""
    index = await _fresh_index(request)
    watcher = request.app[WATCHER]
    chosen = await _oldest_first(watcher, request.query.getall("run", [])[:2])
    a = request.query.get("a") or (chosen[0] if chosen else "")
    b = request.query.get("b") or (chosen[-1] if chosen else "")
    if not a or not b:
        raise web.HTTPNotFound(text=_CHOOSE)
    runs = [side.partition("@")[0] for side in (a, b)]
    if None in [await _known(watcher, run) for run in runs]:
        raise web.HTTPNotFound(text=_CHOOSE)
    stamps = [index.stamp(run) for run in runs]
    primary = request.query.get("primary", "")
    return _html(await watcher.rendered(("compare", a, b, primary, *stamps), compare_html, index.root, a, b, primary))


@routes.get("/history")
async def history(request: web.Request) -> web.Response:
    """History of metrics over runs."""
    index = await _fresh_index(request)
    page = await asyncio.to_thread(history_page, index, dict(request.query))
    return _html(await asyncio.to_thread(served, "history.html", page))


@routes.get("/api/runs")
async def api_runs(request: web.Request) -> web.Response:
    """List of runs as JSON, with the same filters."""
    index = await _fresh_index(request)
    query = query_of(request.query, limit=_MAX_LISTED)
    return _json([] if query is None else await asyncio.to_thread(index.runs, query))


@routes.get("/api/runs/{run}")
async def api_run(request: web.Request) -> web.Response:
    """Facts of one run as JSON."""
    await _fresh_index(request)
    return _json(await _facts(request))


@routes.get("/api/runs/{run}/live")
async def api_live(request: web.Request) -> web.Response:
    """Present state of a run as JSON."""
    return _json((await _live(request))[0])


@routes.get("/metrics")
async def metrics(request: web.Request) -> web.Response:
    """Prometheus exposition."""
    index = await _fresh_index(request)
    text = await asyncio.to_thread(prometheus.exposition, index, request.app[WATCHER].live)
    return web.Response(body=text, headers={"Content-Type": prometheus.CONTENT_TYPE})


async def _fresh_index(request: web.Request) -> Index:
    watcher = request.app[WATCHER]
    await watcher.refresh()
    return watcher.index


async def _indexed(request: web.Request) -> tuple[Watcher, Path, str]:
    """The run that an address names, looked up in the index."""
    index = await _fresh_index(request)
    facts = await _facts(request)
    return request.app[WATCHER], index.root / facts.id, index.stamp(facts.id) or ""


async def _live(request: web.Request) -> tuple[Live, Path]:
    """Present state and folder of the run that an address names."""
    watcher, path, _ = await _indexed(request)
    return await asyncio.to_thread(lambda: watcher.live.read(RunFolder.open(path))), path


async def _oldest_first(watcher: Watcher, runs: list[str]) -> list[str]:
    """Run ids by age: the oldest is the baseline."""
    indexed = [facts for run in runs if (facts := await _known(watcher, run)) is not None]
    return [facts.id for facts in sorted(indexed, key=lambda facts: (facts.created_utc, facts.id))]


async def _known(watcher: Watcher, run: str) -> RunFacts | None:
    """Facts of a run, which may have begun since the last scan; None if there is no such run."""
    facts = watcher.index.run(run)
    if facts is None:
        await watcher.rescan()
        facts = watcher.index.run(run)
    return facts


async def _facts(request: web.Request) -> RunFacts:
    facts = await _known(request.app[WATCHER], request.match_info["run"])
    if facts is None:
        raise web.HTTPNotFound(text="there is no such run; see the list")
    return facts


def _html(page: str) -> web.Response:
    return web.Response(body=page.encode("utf-8", errors="replace"), content_type="text/html", charset="utf-8")


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
