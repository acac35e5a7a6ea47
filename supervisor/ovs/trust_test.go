// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	certificates "k8s.io/api/certificates/v1"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// mountTrust writes the CA bundle into a directory like a kubelet: a new directory of files, and then the link ..data to it.
func mountTrust(t *testing.T, directory string, bundle []byte) {
	t.Helper()
	files := must.Value(os.MkdirTemp(directory, "..files"))
	must.Succeed(t, os.WriteFile(filepath.Join(files, ChassisTrustFile), bundle, 0o600))
	must.Succeed(t, os.Symlink(filepath.Base(files), filepath.Join(directory, "..data_tmp")))
	must.Succeed(t, os.Rename(filepath.Join(directory, "..data_tmp"), filepath.Join(directory, "..data")))
	if link := filepath.Join(directory, ChassisTrustFile); !must.Value(exists(link)) {
		must.Succeed(t, os.Symlink(filepath.Join("..data", ChassisTrustFile), link))
	}
}

// signedBy is an API server whose operator signs with the current CA. It counts the requests.
func signedBy(t *testing.T, current *atomic.Pointer[supervisortest.Authority], filed *atomic.Int32) *oneAtATime {
	return &oneAtATime{anew: func(request *certificates.CertificateSigningRequest) {
		filed.Add(1)
		block, _ := pem.Decode(request.Spec.Request)
		parsed, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Error(err)
			return
		}
		request.Status.Certificate = current.Load().Sign(t, "node-1", parsed.PublicKey)
	}}
}

// TestAReplacedCABringsANewCertificate checks that a node requests a certificate at once when its own is of a CA that was replaced,
// and not when a rotation adds a CA.
func TestAReplacedCABringsANewCertificate(t *testing.T) {
	first, next, lost := supervisortest.NewAuthority(t, "first"), supervisortest.NewAuthority(t, "next"), supervisortest.NewAuthority(t, "first")
	trust := t.TempDir()
	var signs atomic.Pointer[supervisortest.Authority]
	var filed, ready atomic.Int32
	signs.Store(&first)
	c := certificate{
		dir: t.TempDir(), node: "node-1", trust: filepath.Join(trust, ChassisTrustFile), requests: signedBy(t, &signs, &filed), log: supervisortest.Log(t),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.run(ctx, func() { ready.Add(1) }); close(done) }()
	defer func() { cancel(); <-done }()
	issued := func(n int32) {
		t.Helper()
		eventually.Wait{For: "a certificate"}.Holds(t, func() bool { return ready.Load() >= n })
		if filed.Load() != n {
			t.Fatalf("%d requests, want %d", filed.Load(), n)
		}
	}
	issued(1) // without a bundle
	mountTrust(t, trust, first.PEM)
	mountTrust(t, trust, slices.Concat(first.PEM, next.PEM))
	signs.Store(&lost)
	mountTrust(t, trust, slices.Concat(next.PEM, lost.PEM)) // of the same name, with another key
	issued(2)
	leaf, err := c.load()
	must.Succeed(t, err)
	if !c.trusts(leaf) {
		t.Error("the new certificate is not of a CA in the bundle")
	}
}

// TestABundleWithoutTheCADoesNotFloodTheAPIServer has a bundle that never gets the CA that signs.
func TestABundleWithoutTheCADoesNotFloodTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signs, other := supervisortest.NewAuthority(t, "chassis"), supervisortest.NewAuthority(t, "other")
		trust := t.TempDir()
		mountTrust(t, trust, other.PEM)
		var current atomic.Pointer[supervisortest.Authority]
		var filed atomic.Int32
		current.Store(&signs)
		c := certificate{
			dir: t.TempDir(), node: "node-1", trust: filepath.Join(trust, ChassisTrustFile), requests: signedBy(t, &current, &filed), log: logr.Discard(),
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // in synctest's clock
		defer cancel()
		c.run(ctx, func() {})
		if n := filed.Load(); n < 4 || n > 6 { // after 0, 1, 3, 7, 15 and 25 minutes
			t.Errorf("%d requests within half an hour", n)
		}
	})
}

// TestAReplacedCAIsNoticedWithoutAWatch has a directory that cannot be watched, as on a node without free inotify instances: the watch
// cleans the path and so follows another directory, which does not exist.
func TestAReplacedCAIsNoticedWithoutAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, next := supervisortest.NewAuthority(t, "first"), supervisortest.NewAuthority(t, "next")
		directory := t.TempDir()
		trust := filepath.Join(directory, "files", "trust")
		must.Succeed(t, os.MkdirAll(trust, 0o700))
		must.Succeed(t, os.Symlink(trust, filepath.Join(directory, "link")))
		mountTrust(t, trust, first.PEM)
		var signs atomic.Pointer[supervisortest.Authority]
		var filed atomic.Int32
		signs.Store(&first)
		c := certificate{
			dir: t.TempDir(), node: "node-1", trust: directory + "/link/../trust/" + ChassisTrustFile,
			requests: signedBy(t, &signs, &filed), log: logr.Discard(),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.run(ctx, func() {}); close(done) }()
		defer func() { cancel(); <-done }()
		time.Sleep(time.Minute) // in synctest's clock
		if n := filed.Load(); n != 1 {
			t.Fatalf("%d requests before the CA is replaced, want 1", n)
		}
		signs.Store(&next)
		mountTrust(t, trust, next.PEM)
		time.Sleep(time.Minute)
		if n := filed.Load(); n != 2 {
			t.Errorf("%d requests after the CA was replaced, want 2", n)
		}
	})
}
