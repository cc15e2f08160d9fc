# muster: the broker, and the commands of a client. Bytes that stay are in the last stage alone.
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --disable-pip-version-check --prefix=/install '.[postgres,http]'

FROM python:3.12-slim
# A number, so that Kubernetes can see that it is not root's.
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin muster \
    && install --directory --owner=muster /data
COPY --from=build /install /usr/local
USER 10001
WORKDIR /data
# Inside a container 127.0.0.1 is reached by nobody else. With --store nothing is kept in /data.
ENV MUSTER_HOST=0.0.0.0 MUSTER_DATA=/data MUSTER_HTTP=0.0.0.0:8080
EXPOSE 9092 8080
ENTRYPOINT ["muster"]
CMD ["serve"]
