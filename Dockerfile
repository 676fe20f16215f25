# The program `fedreid` in a container, as an ordinary user.
#
#   docker build -t fedreid .                              # CPU
#   docker build -t fedreid --build-arg EXTRA=cuda12 .     # or cuda13
#   docker run --rm -v "$PWD/runs:/work/runs" fedreid train dfh
#
# docs/machines.md describes GPUs, volumes and users.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY fedreid_jax fedreid_jax
# A wheel, so that the image has the package and not the sources.
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
# Extra of pyproject.toml for the devices: cuda12, cuda13, or empty for the CPU.
ARG EXTRA=
# The version of the package is that of the wheel, which hadolint does not see.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    wheel="$(ls /wheels/fedreid_jax-*.whl)" && \
    pip install --no-cache-dir "${wheel}[viz,search,serve,privacy,export,track${EXTRA:+,${EXTRA}}]"
# The number of the user is that of the first user of most hosts, so that files
# in mounted folders belong to somebody there.
RUN useradd --create-home --uid 1000 fedreid && \
    install -d -m 1777 /work/runs /cache
# Compiled programs and rendered images; anybody may write, for --user.
ENV XDG_CACHE_HOME=/cache
USER 1000
WORKDIR /work
ENTRYPOINT ["fedreid"]
CMD ["--help"]
