module github.com/weir-go/weir/browser

go 1.26.0

replace (
	github.com/weir-go/weir => ../
	github.com/weir-go/weir/cmd/demo-api => ../cmd/demo-api
	github.com/weir-go/weir/config => ../config
	github.com/weir-go/weir/prom => ../prom
)

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.23.0
	github.com/weir-go/weir/cmd/demo-api v0.0.0-00010101000000-000000000000
)

require (
	github.com/go-chi/chi/v5 v5.5.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/weir-go/weir v0.0.0-00010101000000-000000000000 // indirect
)
