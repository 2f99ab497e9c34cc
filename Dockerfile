# A worker of a Ray cluster: `docker build -t tardygrad-worker .`, then on every machine
#   docker run --network=host --shm-size=8g tardygrad-worker --address=HEAD:6379
# and on the head `ray start --head`. Driver and workers need the same Python and the same versions of constraints.txt.
# For a build of PyTorch without CUDA, or for another CUDA, give PyTorch's own package index for it as
# --build-arg PIP_EXTRA_INDEX_URL=..., which pip reads. For GPUs, run with --gpus=all.
FROM python:3.11-slim-bookworm
ARG PIP_EXTRA_INDEX_URL

RUN useradd --create-home --uid 1000 worker
WORKDIR /home/worker/tardygrad
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m pip install --no-cache-dir -c constraints.txt '.[ray,fast,hf]'

USER 1000
WORKDIR /home/worker
ENV OMP_NUM_THREADS=1
ENTRYPOINT ["ray", "start", "--block", "--disable-usage-stats"]
CMD ["--address=127.0.0.1:6379"]
