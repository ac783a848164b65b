module github.com/weir-go/weir/cmd/weirctl

go 1.25.0

replace (
	github.com/weir-go/weir => ../../
	github.com/weir-go/weir/config => ../../config
)

require (
	github.com/redis/go-redis/v9 v9.22.0
	github.com/weir-go/weir v0.0.0-00010101000000-000000000000
	github.com/weir-go/weir/config v0.0.0-00010101000000-000000000000
	go.yaml.in/yaml/v4 v4.0.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/open-feature/go-sdk v1.18.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/mock v0.6.0 // indirect
	golang.org/x/sys v0.30.0 // indirect
)
