# The core, which measures servers that run elsewhere:    docker build --tag bakeoff .
# With the reference engine, and torch, which it needs:   docker build --tag bakeoff-engine --target engine .
# docs/install.md says how to run them.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS wheel
# Without git here: the version of a tag, such as 0.1.0; else that of the release in preparation.
ARG SETUPTOOLS_SCM_PRETEND_VERSION=""
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY harness harness
COPY engines engines
COPY workloads workloads
COPY reference_engine reference_engine
COPY results results
RUN pip wheel --quiet --no-cache-dir --no-deps --wheel-dir /wheels .

FROM wheel AS core-environment
COPY core.lock ./
RUN python -m venv --without-pip /opt/bakeoff \
 && pip --python /opt/bakeoff/bin/python install --quiet --no-cache-dir --require-hashes --requirement core.lock \
 && pip --python /opt/bakeoff/bin/python install --quiet --no-cache-dir --no-deps /wheels/*.whl

FROM core-environment AS engine-environment
# Index of torch's wheels for CPUs. Without it the default index gives torch for CUDA, which is several times as large.
ARG PIP_EXTRA_INDEX_URL=""
RUN pip --python /opt/bakeoff/bin/python install --quiet --no-cache-dir "$(echo /wheels/*.whl)[engine]"

FROM python:${PYTHON}-slim AS runtime
RUN useradd --uid 10001 --create-home bakeoff && install --directory --owner bakeoff /runs
ENV PATH=/opt/bakeoff/bin:$PATH
WORKDIR /runs
# A number, since Kubernetes cannot tell of a name that it is not root.
USER 10001
ENTRYPOINT ["bakeoff"]
CMD ["--help"]

FROM runtime AS engine
# The engine compiles its kernels for the machine it runs on; without a compiler it uses slower ones of torch.
USER 0
# Debian keeps one version of a package: a pinned one soon cannot be had.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
USER 10001
COPY --from=engine-environment /opt/bakeoff /opt/bakeoff

FROM runtime AS core
COPY --from=core-environment /opt/bakeoff /opt/bakeoff
