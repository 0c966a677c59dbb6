# The page and the API for one classifier, whose folder is the volume /store; docs/how-to/serve.md says how to run it.
FROM python:3.11-slim

RUN pip install --no-cache-dir uv
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN uv pip install --system --no-cache --torch-backend cpu -c constraints.txt ".[onnx,photos,serve]"

RUN useradd --uid 1000 concm && install -d -o concm /store
USER concm
WORKDIR /store
VOLUME /store
ENV CONCM_CACHE=/tmp/concm
EXPOSE 8000
ENTRYPOINT ["concm"]
CMD ["serve", "/store", "--host", "0.0.0.0", "--port", "8000"]
