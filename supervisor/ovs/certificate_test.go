// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// signer is a fake API server whose operator signs each request at once.
func signer(t *testing.T, authority supervisortest.Authority) certificatesv1.CertificateSigningRequestInterface {
	t.Helper()
	return answering(func(request *certificates.CertificateSigningRequest) {
		block, _ := pem.Decode(request.Spec.Request)
		parsed, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Error(err)
			return
		}
		request.Status.Certificate = authority.Sign(t, parsed.Subject.CommonName, parsed.PublicKey)
	})
}

// answering is a fake API server that lets answer settle each request.
func answering(answer func(*certificates.CertificateSigningRequest)) certificatesv1.CertificateSigningRequestInterface {
	client := fake.NewClientset()
	var made atomic.Int64
	client.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		request, ok := create.GetObject().(*certificates.CertificateSigningRequest)
		if !ok {
			return false, nil, nil
		}
		request.Name = request.GenerateName + strconv.FormatInt(made.Add(1), 10)
		answer(request)
		return false, nil, nil // stored by the next reactor
	})
	return client.CertificatesV1().CertificateSigningRequests()
}

func TestCertificateIsRequestedAndStored(t *testing.T) {
	authority := supervisortest.NewAuthority(t, "chassis")
	c := certificate{dir: filepath.Join(t.TempDir(), "kiln"), node: "node-1", requests: signer(t, authority), log: supervisortest.Log(t)}
	if _, err := c.load(); err == nil {
		t.Fatal("there is a certificate before any was requested")
	}
	if err := c.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := c.load()
	if err != nil || first.Subject.CommonName != "node-1" {
		t.Fatalf("got %v, %v", first, err)
	}
	filed, err := c.requests.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(filed.Items) != 1 {
		t.Fatalf("requests: %v, %v", filed, err)
	}
	if spec := filed.Items[0].Spec; spec.SignerName != "kubeovn.io/chassis" || len(spec.Usages) != 2 {
		t.Errorf("request: %+v", spec)
	}
	if info, err := os.Stat(filepath.Join(c.dir, keyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v, %v", info.Mode(), err)
	}
	supervisortest.Secret(must.Value(os.ReadFile(filepath.Join(c.dir, keyFile))))
	c.requests = signer(t, authority) // a new fake: it ignores field selectors and would return the first request, too
	if err := c.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second, err := c.load(); err != nil || second.SerialNumber.Cmp(first.SerialNumber) == 0 {
		t.Errorf("the certificate was not renewed: %v, %v", second.SerialNumber, err)
	}
}

func TestCertificateOfAnotherNodeDoesNotCount(t *testing.T) {
	authority := supervisortest.NewAuthority(t, "chassis")
	c := certificate{dir: authority.TLSDir(t, "node-2", nil), node: "node-1"}
	if _, err := c.load(); err == nil || !strings.Contains(err.Error(), "not for node-1") {
		t.Errorf("got %v", err)
	}
}

func TestCertificateAtHandServesBeforeTheAPIServerAnswers(t *testing.T) {
	authority := supervisortest.NewAuthority(t, "chassis")
	never := answering(func(*certificates.CertificateSigningRequest) {}) // pending for ever
	c := certificate{dir: authority.TLSDir(t, "node-1", nil), node: "node-1", requests: never, log: supervisortest.Log(t)}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan struct{})
	go func() { c.run(ctx, func() { close(ready) }); close(done) }()
	<-ready
	cancel()
	<-done
}

// TestAnInterruptedStoreIsCompleted crashes a renewal before and after it replaces the certificate.
func TestAnInterruptedStoreIsCompleted(t *testing.T) {
	authority := supervisortest.NewAuthority(t, "chassis")
	for _, replaced := range []bool{false, true} {
		dir := authority.TLSDir(t, "node-1", nil)
		issued, key := authority.Issue(t, "node-1")
		must.Succeed(t, os.WriteFile(filepath.Join(dir, keyFile+".new"), key, 0o600))
		want := must.Value(os.ReadFile(filepath.Join(dir, certificateFile)))
		if replaced {
			want = issued
			must.Succeed(t, os.WriteFile(filepath.Join(dir, certificateFile), issued, 0o600))
		}
		never := answering(func(*certificates.CertificateSigningRequest) {}) // pending for ever
		c := certificate{dir: dir, node: "node-1", requests: never, log: supervisortest.Log(t)}
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan struct{})
		go func() { c.run(ctx, func() { close(ready) }); close(done) }()
		select {
		case <-ready:
		case <-time.After(10 * time.Second):
			t.Errorf("the certificate was replaced: %t; the node has no usable certificate", replaced)
		}
		cancel()
		<-done
		leaf, err := c.load()
		if block, _ := pem.Decode(want); err != nil || !bytes.Equal(leaf.Raw, block.Bytes) {
			t.Errorf("the certificate was replaced: %t; got %v, %v", replaced, leaf, err)
		}
	}
}

func TestDeniedRequestIsAnError(t *testing.T) {
	denied := answering(func(request *certificates.CertificateSigningRequest) {
		request.Status.Conditions = []certificates.CertificateSigningRequestCondition{
			{Type: certificates.CertificateDenied, Reason: "NotThisNode", Message: "the requester is on another node"},
		}
	})
	c := certificate{dir: t.TempDir(), node: "node-1", requests: denied, log: supervisortest.Log(t)}
	if err := c.renew(t.Context()); !errors.Is(err, errDenied) || !strings.Contains(err.Error(), "NotThisNode") {
		t.Errorf("got %v", err)
	}
}

// Each denied request stays in the API server for an hour.
func TestDeniedRequestsComeMoreAndMoreSeldom(t *testing.T) {
	var requests atomic.Int32
	denied := answering(func(request *certificates.CertificateSigningRequest) {
		requests.Add(1)
		request.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied}}
	})
	c := certificate{
		dir: t.TempDir(), node: "node-1", requests: denied, log: supervisortest.Log(t), denials: denials{first: time.Hour, last: time.Hour},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.run(ctx, func() { t.Error("there is no certificate") }); close(done) }()
	eventually.Wait{For: "the first request"}.Holds(t, func() bool { return requests.Load() > 0 })
	time.Sleep(2 * time.Second) // longer than the back-off after another error
	cancel()
	<-done
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests, want one before the pause", n)
	}

	d := denials{first: time.Second, last: 4 * time.Second}
	pause := time.Duration(0)
	for _, want := range []time.Duration{1, 2, 4, 4} {
		if pause = d.next(pause, fmt.Errorf("wait: %w", errDenied)); pause != want*time.Second {
			t.Errorf("pause %s, want %s", pause, want*time.Second)
		}
	}
	if pause = d.next(pause, errors.New("no API server")); pause != 0 {
		t.Errorf("another error has the pause %s", pause)
	}
}

func TestSettled(t *testing.T) {
	if _, err := settled(watch.Event{Type: watch.Deleted, Object: &certificates.CertificateSigningRequest{}}); err == nil {
		t.Error("a deleted request must end the wait")
	}
	if done, err := settled(watch.Event{Type: watch.Added, Object: &certificates.CertificateSigningRequest{}}); done || err != nil {
		t.Errorf("a pending request: %t, %v", done, err)
	}
}
