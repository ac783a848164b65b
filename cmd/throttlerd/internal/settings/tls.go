package settings

import (
	"github.com/weir-go/weir/cmd/throttlerd/internal/certs"
)

// TLS is how calls reach the service. Without any of it, they come in plain text.
type TLS struct {
	GRPCUseTLS    bool   `env:"GRPC_SERVER_USE_TLS" envDefault:"false"`
	GRPCCert      string `env:"GRPC_SERVER_TLS_CERT"`
	GRPCKey       string `env:"GRPC_SERVER_TLS_KEY"`
	GRPCClientCA  string `env:"GRPC_CLIENT_TLS_CACERT"`
	GRPCClientSAN string `env:"GRPC_CLIENT_TLS_SAN"`

	// The same for /json and for forward auth. The ports of metrics and of the pages for
	// operators don't use TLS.
	HTTPCert      string `env:"WEIR_HTTP_TLS_CERT"`
	HTTPKey       string `env:"WEIR_HTTP_TLS_KEY"`
	HTTPClientCA  string `env:"WEIR_HTTP_CLIENT_TLS_CACERT"`
	HTTPClientSAN string `env:"WEIR_HTTP_CLIENT_TLS_SAN"`
}

// GRPCCerts returns the files for gRPC, or nil if it is in plain text.
func (s *TLS) GRPCCerts() *certs.Files {
	if !s.GRPCUseTLS {
		return nil
	}
	return &certs.Files{Cert: s.GRPCCert, Key: s.GRPCKey, ClientCA: s.GRPCClientCA, ClientName: s.GRPCClientSAN}
}

// HTTPCerts returns the files for HTTP, or nil if it is in plain text.
func (s *TLS) HTTPCerts() *certs.Files {
	if s.HTTPCert == "" {
		return nil
	}
	return &certs.Files{Cert: s.HTTPCert, Key: s.HTTPKey, ClientCA: s.HTTPClientCA, ClientName: s.HTTPClientSAN}
}

// check returns the mistakes of the variables together, such as settings that look like
// encryption but don't encrypt.
func (s *TLS) check() (problems mistakes) {
	problems.add(s.GRPCUseTLS && (s.GRPCCert == "" || s.GRPCKey == ""), "GRPC_SERVER_USE_TLS is set; GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must be files in PEM")
	problems.add(!s.GRPCUseTLS && s.GRPCCert+s.GRPCKey+s.GRPCClientCA+s.GRPCClientSAN != "", "GRPC_SERVER_USE_TLS is false, and another variable of TLS for gRPC is set; it must be true")
	problems.add(s.GRPCClientSAN != "" && s.GRPCClientCA == "", "GRPC_CLIENT_TLS_SAN is %q; GRPC_CLIENT_TLS_CACERT must be a PEM file of the CAs that sign clients' certificates", s.GRPCClientSAN)
	problems.add((s.HTTPCert == "") != (s.HTTPKey == ""), "WEIR_HTTP_TLS_CERT is %q and WEIR_HTTP_TLS_KEY is %q; both must be files in PEM", s.HTTPCert, s.HTTPKey)
	problems.add(s.HTTPCert == "" && s.HTTPClientCA+s.HTTPClientSAN != "", "WEIR_HTTP_TLS_CERT is not set, and another variable of TLS for HTTP is; it must be a file in PEM")
	problems.add(s.HTTPClientSAN != "" && s.HTTPClientCA == "", "WEIR_HTTP_CLIENT_TLS_SAN is %q; WEIR_HTTP_CLIENT_TLS_CACERT must be a PEM file of the CAs that sign clients' certificates", s.HTTPClientSAN)
	return problems
}
