module github.com/weir-go/weir

// The lowest Go version that the code needs. Dependencies have the newest versions that
// build with it.
go 1.25.0

require (
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/dunglas/httpsfv v1.1.2
	github.com/go-chi/chi/v5 v5.5.0
	github.com/open-feature/go-sdk v1.18.0
	github.com/redis/go-redis/v9 v9.22.0
	go.uber.org/goleak v1.3.0
)

require (
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/mock v0.6.0 // indirect
	golang.org/x/sys v0.30.0 // indirect
)
