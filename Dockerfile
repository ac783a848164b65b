# One image for each program:
#
#   docker build --tag throttlerd .
#   docker build --target weirctl --tag weirctl .
#   docker build --target demo-api --tag demo-api .
#
# VERSION and REVISION are what -version prints: the build has no repository to ask.
FROM --platform=$BUILDPLATFORM golang:1.26.8-alpine@sha256:ce864e7223ac17b1775e6fd0b4c0db580c2eb50e7953a427916379e4b92a1628 AS build
WORKDIR /src
ENV CGO_ENABLED=0
COPY . .
ARG TARGETOS=linux TARGETARCH=amd64 VERSION= REVISION=
ENV GOOS=$TARGETOS GOARCH=$TARGETARCH
ENV LINK="-s -w -X github.com/weir-go/weir/cmd/internal/build.release=$VERSION -X github.com/weir-go/weir/cmd/internal/build.commit=$REVISION"

FROM build AS build-demo-api
RUN go build -trimpath -ldflags="$LINK" -o /out/ ./cmd/demo-api

FROM build AS build-weirctl
RUN go build -trimpath -ldflags="$LINK" -o /out/ ./cmd/weirctl

FROM build AS build-throttlerd
RUN go build -trimpath -ldflags="$LINK" -o /out/ ./cmd/throttlerd

FROM scratch AS demo-api
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build-demo-api /out/demo-api /demo-api
USER 65532
EXPOSE 8080 8081
ENTRYPOINT ["/demo-api"]

FROM scratch AS weirctl
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build-weirctl /out/weirctl /weirctl
USER 65532
ENTRYPOINT ["/weirctl"]

FROM scratch AS throttlerd
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build-throttlerd /out/throttlerd /throttlerd
# What Envoy Gateway runs in the container of its rate limit service.
COPY --from=build-throttlerd /out/throttlerd /bin/ratelimit
USER 65532
EXPOSE 8080 8081 9090
ENTRYPOINT ["/throttlerd"]
