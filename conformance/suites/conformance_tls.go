// Put into the tested copy of go-redis: with CONFORMANCE_CA, a CA's file, each client connects with TLS.
package redis

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

func (opt *Options) conformanceTLS() {
	path := os.Getenv("CONFORMANCE_CA")
	if path == "" || opt.TLSConfig != nil || opt.Dialer != nil || opt.Network == "unix" {
		return
	}
	certificate, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(certificate) {
		panic("no certificate in " + path)
	}
	opt.TLSConfig = &tls.Config{RootCAs: authorities, ServerName: "localhost", MinVersion: tls.VersionTLS12}
}
