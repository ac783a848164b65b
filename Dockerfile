FROM golang:1.26-alpine AS build
WORKDIR /src
COPY . .
ENV CGO_ENABLED=0
RUN go build -trimpath -ldflags="-s -w" -o /demo-api ./cmd/demo-api

FROM build AS build-throttlerd
RUN go build -trimpath -ldflags="-s -w" -o /throttlerd ./cmd/throttlerd

# docker build --target throttlerd --tag throttlerd .
FROM scratch AS throttlerd
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build-throttlerd /throttlerd /throttlerd
# What Envoy Gateway runs in the container of its rate limit service.
COPY --from=build-throttlerd /throttlerd /bin/ratelimit
USER 65532
EXPOSE 8080 8081 9090
ENTRYPOINT ["/throttlerd"]

FROM scratch
COPY --from=build /demo-api /demo-api
USER 65532
EXPOSE 8080 8081
ENTRYPOINT ["/demo-api"]
