# The page and the API for one classifier, whose folder is the volume /store; docs/how-to/serve.md says how to run it.
FROM python:3.11-slim AS made

RUN pip install --no-cache-dir uv
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN uv venv /opt/concm && uv pip install --python /opt/concm/bin/python --no-cache --compile-bytecode \
    --torch-backend cpu -c constraints.txt ".[onnx,photos,serve]"

FROM python:3.11-slim

COPY --from=made /opt/concm /opt/concm
RUN useradd --uid 1000 concm && install -d -o concm /store
USER concm
WORKDIR /store
VOLUME /store
ENV PATH=/opt/concm/bin:$PATH CONCM_CACHE=/tmp/concm HOME=/tmp
EXPOSE 8000
# A process that is the first one of a container hears no SIGTERM until it listens for it.
STOPSIGNAL SIGINT
ENTRYPOINT ["concm"]
CMD ["serve", "/store", "--host", "0.0.0.0", "--port", "8000"]
