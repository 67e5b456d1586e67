"""Common base of server adapters: find the program, and run it locally, in a container or over ssh."""

import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from bakeoff.engines.access import Access
from bakeoff.engines.addresses import Address, targets_of
from bakeoff.engines.base import NoOptions, Setup, access_to
from bakeoff.engines.build import build_of, image_id
from bakeoff.engines.deployment import Container, Deployment, Ssh
from bakeoff.engines.dialects import Dialect
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.environments import Environment, find
from bakeoff.engines.errors import BadOption, ModelNotFound, NotInstalled
from bakeoff.engines.identity import MODELS_PAGE, Identity, Pages, listed_models
from bakeoff.engines.launcher import Launch, Server
from bakeoff.engines.metrics import MetricsSource
from bakeoff.engines.spec import Setting, Spellings, spelt

_INSIDE = "/bakeoff/"
"""Folder of configuration files inside a container."""
_CONTAINER_PORT = 8000
"""Port on which an engine listens inside its container."""
_REMOTE_PORTS = range(20_000, 32_768)
"""Ports for engines on other hosts, drawn at random per start; Linux uses higher ports for connections."""
_SHARED_MEMORY = "16g"
"""Shared memory of a container. Docker's default of 64 MB is too small for several GPUs, and ``--ipc host`` would
expose the shared memory of other programs."""
_SSH_OPTIONS = tuple(
    word
    for option in ("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=5", "ControlPath=none")
    for word in ("-o", option)
)


class ServerEngine:
    """Base of adapters for HTTP servers.

    A subclass sets class variables and its dialect, and defines its command line in :meth:`command` and
    :meth:`arguments`. The rest has defaults.

    Raises:
        BadOption: settings of the deployment contradict each other, or the engine does not support the spec.
    """

    adapter: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    spellings: ClassVar[Spellings] = {}
    """Spellings of the shared settings."""
    recipes: ClassVar[tuple[str, ...]] = ()
    """Environments that contain the engine, best first."""
    distributions: ClassVar[tuple[str, ...]] = ()
    """Packages that contain the engine; the first installed one gives its version."""
    programs: ClassVar[tuple[str, ...]] = ()
    """Programs of the engine, searched on PATH if no package is installed."""
    needs_gpu: ClassVar[bool] = False
    """Whether it needs an NVIDIA GPU. Environments have this flag, too, because some engines have CPU builds."""
    module: ClassVar[tuple[str, ...]] = ()
    """``-m`` and the module, for an engine that runs in its environment's interpreter."""
    container_command: ClassVar[tuple[str, ...]] = ()
    """Command before the flags in the usual container image; empty if its entry point suffices."""
    model_suffix: ClassVar[str] = ""
    """Suffix of the checkpoint file that it serves; empty for the folder."""
    lists_model: ClassVar[bool] = False
    """Whether its server lists ``model_id`` at /v1/models, which reveals another server on its port."""
    owned_by: ClassVar[str | None] = None
    """``owned_by`` of the models that its server lists at /v1/models, to recognise a running server."""
    identity_pages: ClassVar[tuple[str, ...]] = (MODELS_PAGE,)
    """Pages that identify a running server."""
    key_header: ClassVar[str] = "authorization"
    key_variable: ClassVar[str | None] = None
    """Environment variable that sets the key of a launched engine."""
    ready_path: ClassVar[str] = "/health"
    ready_timeout_s: ClassVar[float] = 300.0
    stop_grace_s: ClassVar[tuple[float, float]] = (10.0, 5.0)
    metrics: MetricsSource | None = None
    setting_places: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Where :meth:`describe` holds a shared setting: dotted names, of which the first that is there counts."""
    notes: Sequence[str] = ()

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        self.setup = setup
        self.dialect: Dialect = self.dialect_for(setup)
        deployment = setup.deployment
        self.addresses: Sequence[Address] = [
            msgspec.structs.replace(address, url=endpoint(address.url).base_url) for address in deployment.addresses
        ]
        self.url: str | None = next((target.url for target in targets_of(self.addresses)), None)
        self.access: Access = access_to(deployment, self.key_header)
        self._inherited = _inherited(deployment)
        self.setting: Setting = Setting() if self.url else spelt(setup.spec, self.spellings, self.adapter)
        self.model_id: str = deployment.served_model_name or setup.model.name

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Check the configuration without touching the machine.

        Raises:
            BadOption: as for the class.
        """
        if problem := setup.deployment.problem():
            raise BadOption(f"engine '{cls.adapter}': {problem}")
        addresses = setup.deployment.addresses
        if len({endpoint(address.url).is_versioned for address in addresses}) > 1:
            raise BadOption(
                f"engine '{cls.adapter}': some of urls end in a version of their own and others do not; make them alike"
            )
        if not addresses:
            spelt(setup.spec, cls.spellings, cls.adapter)

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """Identity of the server, if the pages are those of this engine; else None."""
        models = listed_models(pages)
        if cls.owned_by is None or not models or any(model.owned_by != cls.owned_by for model in models):
            return None
        return Identity(cls.adapter, tuple(model.id for model in models), models[0].root)

    # Defined by subclasses.

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        """The wire format for this configuration."""
        raise BadOption(f"engine '{cls.adapter}' has no dialect")

    def command(self) -> Sequence[str]:
        """The local command before the flags.

        Raises:
            NotInstalled: the engine is not installed; the error has the command that installs it.
        """
        deployment = self.setup.deployment
        if self.module and deployment.program:
            return (deployment.program, "serve")
        if self.module:
            return ("python" if deployment.ssh else str(self.environment().python), *self.module)
        raise BadOption(f"engine '{self.adapter}' cannot be launched; give its url")

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:  # noqa: ARG002
        """Flags for address, model and the adapter's options; shared settings are added to them."""
        return ()

    def environ(self) -> dict[str, str]:
        """Environment variables that it always needs."""
        return {"HF_HUB_OFFLINE": "1"}

    def files(self) -> dict[str, str]:
        """Configuration files by name; ``{file:NAME}`` in the arguments becomes their path."""
        return {}

    async def reset_cache(self, server: Server) -> bool:  # noqa: ARG002
        """False: the engine has no such call, unless a subclass knows one."""
        return False

    async def describe(self, server: Server) -> dict[str, Any]:  # noqa: ARG002
        """The version of the package that it was started from, if any."""
        version = self.installed_version()
        return {"version": version} if version else {}

    # Common to all.

    def settings_asked(self) -> dict[str, Any]:
        return {} if self.url else msgspec.to_builtins(self.setup.spec)

    def settings_in(self, description: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: _first_at(description, places) for name, places in self.setting_places.items()}
        return {name: value for name, value in found.items() if value is not None}

    def launch(self, port: int) -> Launch | None:
        """How to start it on ``port``; None for a running server.

        Raises:
            ModelNotFound: it needs a model's files, and none are configured.
            NotInstalled: the program is not installed.
        """
        if self.url:
            return None
        deployment = self.setup.deployment
        key = {} if deployment.ssh else self._key()  # ssh would show it in the remote process list
        env = {**key, **self._variables()}
        remote_port = secrets.choice(_REMOTE_PORTS) if deployment.ssh else None
        container_name = f"bakeoff-{secrets.token_hex(6)}" if deployment.container else None
        argv, cleanup = self._words(port, env, remote_port=remote_port, container_name=container_name)
        return Launch(
            argv=tuple(argv),
            port=port,
            env=env,
            files=self.files(),
            cleanup=tuple(cleanup),
            elsewhere=bool(deployment.container or deployment.ssh),
            listed_model=self.model_id if deployment.ssh and self.lists_model else None,
            container=_inspection(deployment.container, container_name),
            drawn=tuple(str(part) for part in (port, remote_port, container_name) if part),
            ready_path=self.access.path(self.ready_path),
            ready_timeout_s=deployment.ready_timeout_s or self.ready_timeout_s,
            stop_grace_s=self.stop_grace_s,
        )

    def gpus(self) -> str | None:
        """GPUs of this machine that it may use, as :meth:`bakeoff.engines.base.Engine.gpus` defines them."""
        launched = {} if self.url else self._variables()  # a running server needs no package here
        return self.setup.deployment.gpus({**os.environ, **launched})

    def environment(self) -> Environment:
        """The Python environment with its packages.

        Raises:
            NotInstalled: there is none.
        """
        return find(self.setup.deployment.environment, self.recipes, self.distributions)

    def installed_version(self) -> str | None:
        """The version of the local package that it is started from; None if there is none."""
        deployment = self.setup.deployment
        if self.url or deployment.container or deployment.ssh or deployment.program or not self.distributions:
            return None
        place = self.environment()
        return next((version for name in self.distributions if (version := place.version(name))), None)

    def build(self) -> dict[str, Any]:
        """Plain data that changes with the code that a launch runs, as far as this machine can tell.

        Empty for a server at an address or on another host.
        """
        deployment = self.setup.deployment
        if self.url or deployment.ssh:
            return {}
        if deployment.container:
            return {"image": image_id(deployment.container.runtime, deployment.container.image)}
        return build_of(self.command()[0])

    def model_file(self) -> str:
        """The checkpoint's folder, or the file in it that this engine reads.

        Raises:
            ModelNotFound: there is no such folder or file.
        """
        path = self.setup.model.path
        if path is None:
            raise ModelNotFound(f"engine '{self.adapter}' needs a model's files; set path in [model]")
        place = Path(path)
        if not self.model_suffix or place.suffix == self.model_suffix:
            return path
        files = sorted(place.glob(f"*{self.model_suffix}")) if place.is_dir() else []
        if not files:
            raise ModelNotFound(f"engine '{self.adapter}' needs a {self.model_suffix} file, and {path} has none")
        return str(files[0])

    def _variables(self) -> dict[str, str]:
        """Environment variables except the key."""
        return {**self.environ(), **self.setting.env, **self._inherited, **self.setup.deployment.env}

    def _key(self) -> dict[str, str]:
        """The variable that gives a launched engine the key of requests."""
        key = self.access.headers.get(self.key_header)
        return {self.key_variable: key.removeprefix("Bearer ")} if key and self.key_variable else {}

    def _words(
        self, port: int, env: dict[str, str], *, remote_port: int | None, container_name: str | None
    ) -> tuple[list[str], list[str]]:
        """The command line, and the clean-up command."""
        deployment = self.setup.deployment
        model = self.model_file()
        own = [*self.setting.argv, *deployment.args]
        if deployment.container:
            model = str(Path(model).absolute())
            flags = [*self.arguments("0.0.0.0", _CONTAINER_PORT, model), *own]  # noqa: S104  (inside the container)
            container = deployment.container
            command = self.container_command if container.command is None else container.command
            for name in self.files():
                container = _with_file(container, name)
                flags = [word.replace(f"{{file:{name}}}", _INSIDE + name) for word in flags]
            assert container_name is not None, "it was drawn above"
            return _in_container(container, container_name, [*command, *flags], port, variables=tuple(env), model=model)
        if deployment.ssh:
            remote = deployment.ssh
            assert remote_port is not None, "it was drawn above"
            flags = [*self.arguments("127.0.0.1", remote_port, remote.model_path or model), *own]
            words = [*(remote.command or self._command_there()), *flags]
            return _over_ssh(remote, words, f"127.0.0.1:{port}:127.0.0.1:{remote_port}", env), []
        return [*self.command(), *self.arguments("127.0.0.1", port, model), *own], []

    def _command_there(self) -> Sequence[str]:
        """The program's name, for PATH on another host; a configured program as it is."""
        try:
            command = self.command()
        except NotInstalled as error:
            message = f"engine '{self.adapter}': its program on that host is not known; set ssh.command"
            raise NotInstalled(message) from error
        return command if self.setup.deployment.program else [Path(word).name for word in command]


def _first_at(description: Mapping[str, Any], places: Sequence[str]) -> object:
    """The value of the first dotted name that ``description`` has; None without one."""
    for place in places:
        value: object = description
        for key in place.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _inherited(deployment: Deployment) -> dict[str, str]:
    """The variables of ``deployment.inherit``.

    Raises:
        BadOption: one of them is not set.
    """
    missing = next((name for name in deployment.inherit if name not in os.environ), None)
    if missing:
        raise BadOption(f"the environment variable {missing} is not set; export it or remove it from inherit")
    return {name: os.environ[name] for name in deployment.inherit}


def _with_file(container: Container, name: str) -> Container:
    """The container with a configuration file mounted."""
    return msgspec.structs.replace(container, args=[*container.args, "--volume", f"{{file:{name}}}:{_INSIDE}{name}:ro"])


def _over_ssh(remote: Ssh, words: Sequence[str], forward: str, env: dict[str, str]) -> list[str]:
    """``ssh`` with a forwarded port, and a terminal so that remote processes end with the connection.

    The connection is not shared, because a shared one would keep the port.
    """
    remote_command = shlex.join(["env", *(f"{name}={value}" for name, value in env.items()), *words])
    return ["ssh", "-tt", *_SSH_OPTIONS, "-L", forward, *remote.args, "--", remote.host, remote_command]


def _in_container(
    container: Container, name: str, command: Sequence[str], port: int, *, variables: Sequence[str], model: str
) -> tuple[list[str], list[str]]:
    """``docker run`` in the foreground. Variables are passed by name, so that no process list shows their values."""
    argv = [container.runtime, "run", "--rm", "--init", "--name", name]
    argv += ["--publish", f"127.0.0.1:{port}:{_CONTAINER_PORT}", "--volume", f"{model}:{model}:ro"]
    if not any(word.startswith(("--ipc", "--shm-size")) for word in container.args):
        argv += ["--shm-size", _SHARED_MEMORY]
    if container.gpus and container.runtime == "docker":
        argv += ["--gpus", container.gpus if container.gpus == "all" else f'"device={container.gpus}"']
    elif container.gpus:
        argv += [word for gpu in container.gpus.split(",") for word in ("--device", f"nvidia.com/gpu={gpu}")]
    argv += [word for variable in variables for word in ("--env", variable)]
    return [*argv, *container.args, container.image, *command], [container.runtime, "rm", "--force", name]


def _inspection(container: Container | None, name: str | None) -> tuple[str, ...]:
    """Command that prints the container's pid and id."""
    return (container.runtime, "inspect", "--format", "{{.State.Pid}} {{.Id}}", name) if container and name else ()
