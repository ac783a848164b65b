FROM golang:1.26-alpine AS build
WORKDIR /src
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /demo-api ./cmd/demo-api

FROM scratch
COPY --from=build /demo-api /demo-api
USER 65532
EXPOSE 8080 8081
ENTRYPOINT ["/demo-api"]
