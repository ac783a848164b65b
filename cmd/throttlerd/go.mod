module github.com/weir-go/weir/cmd/throttlerd

go 1.26.0

replace (
	github.com/weir-go/weir => ../../
	github.com/weir-go/weir/config => ../../config
)

require (
	github.com/caarlos0/env/v11 v11.4.2
	github.com/redis/go-redis/v9 v9.22.0
	github.com/weir-go/weir v0.0.0-00010101000000-000000000000
	github.com/weir-go/weir/config v0.0.0-00010101000000-000000000000
	go.yaml.in/yaml/v4 v4.0.0
	google.golang.org/grpc v1.84.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-chi/chi/v5 v5.5.0 // indirect
	github.com/open-feature/go-sdk v1.18.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/mock v0.6.0 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260720211330-0afa2a65878a // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
