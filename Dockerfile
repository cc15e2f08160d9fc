# The broker and the command line.
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --disable-pip-version-check --prefix=/install '.[postgres,http,security]'

FROM python:3.12-slim
# USER is numeric so that Kubernetes can verify that it is not root.
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin muster \
    && install --directory --owner=muster /data
COPY --from=build /install /usr/local
USER 10001
WORKDIR /data
# With --store, /data stays empty. The page is for the container alone, as health checks in it are, until it is given
# another address, with a token and a certificate or MUSTER_HTTP_INSECURE (docs/http.md).
ENV MUSTER_HOST=0.0.0.0 MUSTER_DATA=/data MUSTER_HTTP=127.0.0.1:8080
EXPOSE 9092 8080
ENTRYPOINT ["muster"]
CMD ["serve"]
