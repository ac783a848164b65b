module github.com/weir-go/weir/clients

go 1.26.0

replace github.com/weir-go/weir => ../

require (
	github.com/google/go-github/v90 v90.0.0
	github.com/gorilla/websocket v1.5.3
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/weir-go/weir v0.0.0-00010101000000-000000000000
)

require (
	github.com/go-chi/chi/v5 v5.5.0 // indirect
	github.com/google/go-querystring v1.2.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
)
