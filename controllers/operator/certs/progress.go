// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/serving/pki"
)

var authorityEnd = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "kiln_authority_expiration_timestamp_seconds",
	Help: "Time at which the signing CA of a role expires, in Unix seconds, by its source: operator or issuer.",
}, []string{"authority", "made_by"})

func init() { metrics.Registry.MustRegister(authorityEnd) }

// Progress is the progress of the issuer of the CAs, for the conditions.
type Progress struct {
	// Missing describes, by CA name, the certificates that the issuer has not issued yet.
	Missing map[string]string
	// Overdue marks the missing CAs that expire soon.
	Overdue map[string]bool
	// Waiting lists steps that complete by themselves; Troubles lists problems that need a person.
	Waiting, Troubles []string
	// Joining is the time at which the last of the new CAs begins to sign; zero if there are none.
	Joining time.Time
}

// Note records the state of a CA after its Advance.
func (p *Progress) Note(name string, a *pki.Authority, s pki.Rotation, now time.Time) {
	until, issued := a.Signing()
	authorityEnd.DeletePartialMatch(map[string]string{"authority": name})
	madeBy := "operator"
	if issued {
		madeBy = "issuer"
	}
	authorityEnd.WithLabelValues(name, madeBy).Set(float64(until.Unix()))
	at := a.Joining()
	if at.After(p.Joining) {
		p.Joining = at
	}
	if !s.ByIssuer || !at.IsZero() {
		return
	}
	overdue := issued && !now.Before(a.Overdue())
	switch {
	case overdue:
		p.miss(name, fmt.Sprintf("authority %s is good until %s and has no successor: ", name, until.UTC().Format(time.RFC3339)), true)
	case s.Issued == nil:
		p.miss(name, fmt.Sprintf("authority %s: ", name), false)
	}
}

func (p *Progress) miss(name, what string, overdue bool) {
	if p.Missing == nil {
		p.Missing, p.Overdue = map[string]string{}, map[string]bool{}
	}
	p.Missing[name], p.Overdue[name] = what, overdue
}
