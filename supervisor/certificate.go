// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"crypto/x509"
	"encoding/pem"
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

var certificateDesc = prometheus.NewDesc("kiln_certificate_expiration_timestamp_seconds", "Expiry of a certificate that a process uses.",
	[]string{"hostname", "certificate"}, nil)

// CollectCertificate adds the expiry of the certificate in a file. A file that does not exist, or has no certificate, adds nothing.
func CollectCertificate(f *Figures, host, name, path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return
	}
	if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
		f.Gauge(certificateDesc, float64(certificate.NotAfter.Unix()), host, name)
	}
}
