# An image with the `tsdae` and `ray` commands, for one machine and for the nodes of a Ray cluster.
#
#   docker build -t tsdae-ray .                                  torch as PyPI has it (with CUDA libraries)
#   docker build -t tsdae-ray --build-arg TORCH_INDEX=URL .      torch from another package index; the one
#                                                                that PyTorch's install page names for CPU
#                                                                gives a much smaller image
#   docker run --rm --shm-size 2g -v "$PWD:/data" tsdae-ray run mine.yaml
#
# Not built by a container engine yet. Its RUN commands were run one after the other as root in a bare Debian 12
# (debootstrap, minbase, Python 3.11 as /usr/local/bin/python), then there as user 1000 `tsdae prepare` and
# `tsdae doctor`, with /proc, /sys and /dev/shm mounted. Without /dev/shm Ray does not start.
ARG PYTHON_VERSION=3.11
FROM python:${PYTHON_VERSION}-slim

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONUNBUFFERED=1 \
    GIT_PYTHON_REFRESH=quiet

RUN useradd --create-home --uid 1000 tsdae && install -d -o tsdae -g tsdae /data

WORKDIR /app

# Dependencies first: this layer changes only with these two files. They go into the system Python, because
# cluster operators start Ray in a login shell, which forgets a virtual environment's PATH.
ARG TORCH_INDEX=""
COPY constraints.txt pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb')); print(*p['build-system']['requires'], *p['project']['dependencies'], sep='\n')" > /tmp/requirements.txt \
    && python -m pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt -r /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY README.md LICENSE ./
COPY tsdae_core tsdae_core
COPY indexing indexing
COPY pipelines pipelines
RUN python -m pip install --no-deps --no-build-isolation . && rm -rf build *.egg-info
COPY configs configs

USER tsdae
WORKDIR /data
ENTRYPOINT ["tsdae"]
CMD ["--help"]
