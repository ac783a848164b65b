module github.com/weir-go/weir/docs/traces

go 1.25.0

replace github.com/weir-go/weir => ../../

require github.com/weir-go/weir v0.0.0-00010101000000-000000000000
