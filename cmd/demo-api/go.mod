module github.com/weir-go/weir/cmd/demo-api

go 1.25.0

replace github.com/weir-go/weir => ../../

require (
	github.com/go-chi/chi/v5 v5.5.0
	github.com/open-feature/go-sdk v1.18.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/weir-go/weir v0.0.0-00010101000000-000000000000
	go.yaml.in/yaml/v4 v4.0.0
)

require (
	github.com/bradfitz/gomemcache v0.0.0-20260422231931-4d751bb6e37c // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.uber.org/mock v0.6.0 // indirect
	golang.org/x/sys v0.30.0 // indirect
)
