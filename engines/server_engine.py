"""What adapters of servers have in common: finding the program, and running it here, in a container or over ssh."""

import os
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from engines.base import NoOptions, Setup, access_to, base_url
from engines.build import build_of, image_id
from engines.deployment import Container, Deployment, Ssh
from engines.dialects import Dialect
from engines.environments import Environment, find
from engines.errors import BadOption, ModelNotFound, NotInstalled
from engines.identity import MODELS_PAGE, Identity, Pages, listed_models
from engines.launcher import Launch, Server
from engines.metrics import MetricsSource
from engines.spec import Setting, Spellings, spelt

_INSIDE = "/bakeoff/"
"""Where a container finds configuration files."""
_CONTAINER_PORT = 8000
"""On which an engine listens inside a container, which has ports of its own."""
_REMOTE_PORTS = range(20_000, 32_768)
"""On which an engine listens on another host, drawn anew for each start; Linux gives connections those above."""
_SHARED_MEMORY = "16g"
"""Limit of the memory through which the processes of an engine in a container speak; docker's 64 MB are too few for
several GPUs. With ``--ipc host`` the container could reach the shared memory of other programs."""
_SSH_OPTIONS = tuple(
    word
    for option in ("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=5", "ControlPath=none")
    for word in ("-o", option)
)


class ServerEngine:
    """Base of the adapters whose system is a server over HTTP.

    A child names its class variables and its dialect, and says its command line in :meth:`command` and
    :meth:`arguments`. Everything else may stay as it is.

    Raises:
        BadOption: the deployment contradicts itself, or the spec asks for what this engine cannot do.
    """

    adapter: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    spellings: ClassVar[Spellings] = {}
    """How it spells the shared settings."""
    recipes: ClassVar[tuple[str, ...]] = ()
    """Environments that hold it, best first."""
    distributions: ClassVar[tuple[str, ...]] = ()
    """Packages that hold it; the version of the first that is there is the engine's."""
    programs: ClassVar[tuple[str, ...]] = ()
    """Programs that are it, looked for on PATH where no package holds it."""
    needs_gpu: ClassVar[bool] = False
    """Whether it serves only with an NVIDIA GPU. Environments say so too, since some engines come in both kinds."""
    module: ClassVar[tuple[str, ...]] = ()
    """``-m`` and its name, where it is a module that the interpreter of its environment runs."""
    container_command: ClassVar[tuple[str, ...]] = ()
    """What is run in the usual container before the flags; empty where its entry point does that."""
    model_suffix: ClassVar[str] = ""
    """Of the checkpoint's file that it serves; empty for the folder."""
    lists_model: ClassVar[bool] = False
    """Whether its server lists ``model_id`` at /v1/models: then a stranger that answers in its place is told apart."""
    owned_by: ClassVar[str | None] = None
    """Owner of the models that its server lists at /v1/models, by which a server that runs already is recognised."""
    identity_pages: ClassVar[tuple[str, ...]] = (MODELS_PAGE,)
    """Pages by which it is recognised."""
    key_header: ClassVar[str] = "authorization"
    key_variable: ClassVar[str | None] = None
    """Environment variable by which a launched engine learns the key that it shall ask for."""
    ready_path: ClassVar[str] = "/health"
    ready_timeout_s: ClassVar[float] = 300.0
    stop_grace_s: ClassVar[tuple[float, float]] = (10.0, 5.0)
    metrics: MetricsSource | None = None
    notes: Sequence[str] = ()

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        self.setup = setup
        self.dialect = self.dialect_for(setup)
        deployment = setup.deployment
        self.url = base_url(deployment.url) if deployment.url else None
        self.access = access_to(deployment, self.key_header)
        self._inherited = _inherited(deployment)
        self.told = Setting() if self.url else spelt(setup.spec, self.spellings, self.adapter)
        self.model_id = deployment.served_model_name or setup.model.name

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Find what is wrong without touching the machine.

        Raises:
            BadOption: as the class says.
        """
        if complaint := setup.deployment.problem():
            raise BadOption(f"engine '{cls.adapter}': {complaint}")
        if setup.deployment.url is None:
            spelt(setup.spec, cls.spellings, cls.adapter)

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """What is served, where the pages are those of its own server; None of another's."""
        models = listed_models(pages)
        if cls.owned_by is None or not models or any(model.owned_by != cls.owned_by for model in models):
            return None
        return Identity(cls.adapter, tuple(model.id for model in models), models[0].root)

    # What a child says.

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        """Its wire format under these options; nothing is looked for."""
        raise BadOption(f"engine '{cls.adapter}' names no dialect")

    def command(self) -> Sequence[str]:
        """What is run here before the flags.

        Raises:
            NotInstalled: it is not there; the message says the command that installs it.
        """
        deployment = self.setup.deployment
        if self.module and deployment.program:
            return (deployment.program, "serve")
        if self.module:
            return ("python" if deployment.ssh else str(self.environment().python), *self.module)
        raise BadOption(f"engine '{self.adapter}' cannot be launched; give its url")

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:  # noqa: ARG002
        """Its flags: where to listen, which model, and its own options; shared settings are added."""
        return ()

    def environ(self) -> dict[str, str]:
        """Variables that it always needs."""
        return {"HF_HUB_OFFLINE": "1"}

    def files(self) -> dict[str, str]:
        """Configuration files that it reads, by name; ``{file:NAME}`` in the arguments is their path."""
        return {}

    async def reset_cache(self, server: Server) -> bool:  # noqa: ARG002
        """It has no call for that."""
        return False

    async def describe(self, server: Server) -> dict[str, Any]:  # noqa: ARG002
        """The version of its package, where it was started from one."""
        version = self.installed_version()
        return {"version": version} if version else {}

    # What all have.

    def launch(self, port: int) -> Launch | None:
        """See :class:`engines.base.Engine`.

        Raises:
            ModelNotFound: it needs a model's files, and none are given.
            NotInstalled: its program is not there.
        """
        if self.url:
            return None
        deployment = self.setup.deployment
        key = {} if deployment.ssh else self._key()  # there it would show in the process list; set it on that host
        env = {**key, **self._variables()}
        argv, cleanup = self._words(port, env)
        return Launch(
            argv=tuple(argv),
            port=port,
            env=env,
            files=self.files(),
            cleanup=tuple(cleanup),
            elsewhere=bool(deployment.container or deployment.ssh),
            listed_model=self.model_id if deployment.ssh and self.lists_model else None,
            container=_inspection(deployment.container, cleanup),
            ready_path=self.access.path(self.ready_path),
            ready_timeout_s=deployment.ready_timeout_s or self.ready_timeout_s,
            stop_grace_s=self.stop_grace_s,
        )

    def gpus(self) -> str | None:
        """See :class:`engines.base.Engine`."""
        launched = {} if self.url else self._variables()  # an engine that runs already needs no package here
        return self.setup.deployment.gpus({**os.environ, **launched})

    def environment(self) -> Environment:
        """Where its packages are.

        Raises:
            NotInstalled: nowhere.
        """
        return find(self.setup.deployment.environment, self.recipes, self.distributions)

    def installed_version(self) -> str | None:
        """The version of the package it is started from; None where it is not started from one here."""
        deployment = self.setup.deployment
        if self.url or deployment.container or deployment.ssh or deployment.program or not self.distributions:
            return None
        place = self.environment()
        return next((found for name in self.distributions if (found := place.version(name))), None)

    def build(self) -> dict[str, Any]:
        """Which code a launch runs: plain data that differs where the code does, as far as this machine can tell.

        Empty for a server at an address or on another host.
        """
        deployment = self.setup.deployment
        if self.url or deployment.ssh:
            return {}
        if deployment.container:
            return {"image": image_id(deployment.container.runtime, deployment.container.image)}
        return build_of(self.command()[0])

    def model_file(self) -> str:
        """What it is told to serve: the checkpoint's folder, or the file in it that this engine reads.

        Raises:
            ModelNotFound: there is none.
        """
        path = self.setup.model.path
        if path is None:
            raise ModelNotFound(f"engine '{self.adapter}' needs a model's files; set path in [model]")
        place = Path(path)
        if not self.model_suffix or place.suffix == self.model_suffix:
            return path
        found = sorted(place.glob(f"*{self.model_suffix}")) if place.is_dir() else []
        if not found:
            raise ModelNotFound(f"engine '{self.adapter}' needs a {self.model_suffix} file, and {path} holds none")
        return str(found[0])

    def _variables(self) -> dict[str, str]:
        """Of its environment, less the key."""
        return {**self.environ(), **self.told.env, **self._inherited, **self.setup.deployment.env}

    def _key(self) -> dict[str, str]:
        """A launched engine is told the key that requests will carry."""
        key = self.access.headers.get(self.key_header)
        return {self.key_variable: key.removeprefix("Bearer ")} if key and self.key_variable else {}

    def _words(self, port: int, env: dict[str, str]) -> tuple[list[str], list[str]]:
        """The command line, and what removes what it leaves behind."""
        deployment = self.setup.deployment
        model = self.model_file()
        own = [*self.told.argv, *deployment.args]
        if deployment.container:
            model = str(Path(model).absolute())
            flags = [*self.arguments("0.0.0.0", _CONTAINER_PORT, model), *own]  # noqa: S104  (inside the container)
            container = deployment.container
            command = self.container_command if container.command is None else container.command
            for name in self.files():
                container = _with_file(container, name)
                flags = [word.replace(f"{{file:{name}}}", _INSIDE + name) for word in flags]
            return _in_container(container, [*command, *flags], port, tuple(env), model)
        if deployment.ssh:
            remote = deployment.ssh
            there = secrets.choice(_REMOTE_PORTS)
            flags = [*self.arguments("127.0.0.1", there, remote.model_path or model), *own]
            words = [*(remote.command or self._command_there()), *flags]
            return _over_ssh(remote, words, f"127.0.0.1:{port}:127.0.0.1:{there}", env), []
        return [*self.command(), *self.arguments("127.0.0.1", port, model), *own], []

    def _command_there(self) -> Sequence[str]:
        """The program by its name alone, to be looked for on another host; one that was named as it is."""
        try:
            command = self.command()
        except NotInstalled as error:
            what = f"engine '{self.adapter}': its program on that host is not known; set ssh.command"
            raise NotInstalled(what) from error
        return command if self.setup.deployment.program else [Path(word).name for word in command]


def _inherited(deployment: Deployment) -> dict[str, str]:
    """The variables that it is given of our own environment.

    Raises:
        BadOption: one of them is not set.
    """
    missing = next((name for name in deployment.inherit if name not in os.environ), None)
    if missing:
        raise BadOption(f"the environment variable {missing} is not set; export it, or take it out of inherit")
    return {name: os.environ[name] for name in deployment.inherit}


def _with_file(container: Container, name: str) -> Container:
    """The container with a configuration file in it."""
    return msgspec.structs.replace(container, args=[*container.args, "--volume", f"{{file:{name}}}:{_INSIDE}{name}:ro"])


def _over_ssh(remote: Ssh, words: Sequence[str], forward: str, env: dict[str, str]) -> list[str]:
    """``ssh`` with the port forwarded; a terminal on the far side, so that its processes end with the connection.

    The connection is its own: one that is shared would keep the port when this one ends.
    """
    there = shlex.join(["env", *(f"{name}={value}" for name, value in env.items()), *words])
    return ["ssh", "-tt", *_SSH_OPTIONS, "-L", forward, *remote.args, "--", remote.host, there]


def _in_container(
    container: Container, command: Sequence[str], port: int, variables: Sequence[str], model: str
) -> tuple[list[str], list[str]]:
    """``docker run`` in the foreground. Variables go by name, so that their values are in no process list."""
    name = f"bakeoff-{secrets.token_hex(6)}"
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


def _inspection(container: Container | None, cleanup: Sequence[str]) -> tuple[str, ...]:
    """What prints its pid and its id; what removes it ends with its name."""
    return (container.runtime, "inspect", "--format", "{{.State.Pid}} {{.Id}}", cleanup[-1]) if container else ()
