package settings

// Tracing says where traces go. The exporter itself reads the OTEL_EXPORTER_OTLP_ variables.
type Tracing struct {
	TracingEnabled   bool    `env:"TRACING_ENABLED" envDefault:"false"`
	TracingProtocol  string  `env:"TRACING_EXPORTER_PROTOCOL" envDefault:"http"`
	ServiceName      string  `env:"TRACING_SERVICE_NAME" envDefault:"RateLimit"`
	ServiceNamespace string  `env:"TRACING_SERVICE_NAMESPACE"`
	ServiceInstance  string  `env:"TRACING_SERVICE_INSTANCE_ID"` // the host's name if left out
	SamplingRate     float64 `env:"TRACING_SAMPLING_RATE" envDefault:"1"`
}

func (s *Tracing) check() (problems mistakes) {
	problems.add(s.TracingProtocol != "http" && s.TracingProtocol != "grpc", "TRACING_EXPORTER_PROTOCOL is %q; it must be http or grpc", s.TracingProtocol)
	problems.add(!(s.SamplingRate >= 0 && s.SamplingRate <= 1), "TRACING_SAMPLING_RATE is %v; it must be from 0 to 1", s.SamplingRate)
	return problems
}
