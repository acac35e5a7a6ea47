// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/internal/serving/tlsdir"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// fakeMembers are admin endpoints with mutual TLS, by the port that the operator requests.
type fakeMembers struct {
	now     func() time.Time
	mu      sync.Mutex
	servers map[uint16]*httptest.Server
	// cutOff is an address that the operator cannot reach.
	cutOff netip.Addr
}

func (f *fakeMembers) client(address netip.AddrPort, config *tls.Config) *adminapi.Client {
	config.Time = f.now
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.servers[address.Port()]; address.Addr() == f.cutOff {
		address = netip.MustParseAddrPort("127.0.0.1:1")
	} else if s != nil {
		address = netip.MustParseAddrPort(s.Listener.Addr().String())
	}
	return adminapi.NewClient(address, config)
}

// serve starts an endpoint with a member's certificates. It mounts them again for each connection, without the delay of a
// kubelet.
func (f *fakeMembers) serve(port int32, mount func() string, handler http.Handler) {
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		config, err := tlsdir.Server(mount(), certs.AdminTrustFile).GetConfigForClient(hello)
		if err == nil {
			config.Time = f.now
		}
		return config, err
	}}
	s.StartTLS()
	f.close(port)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers[uint16(port)] = s
}

// close ends the endpoint of a port, if there is one.
func (f *fakeMembers) close(port int32) {
	f.mu.Lock()
	s := f.servers[uint16(port)]
	delete(f.servers, uint16(port))
	f.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// setCutOff makes an address unreachable.
func (f *fakeMembers) setCutOff(address netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cutOff = address
}

// fakeMember is a database member with a status and schemas.
type fakeMember struct {
	adminapi.Database
	mu      sync.Mutex
	status  adminapi.Status
	silence error // instead of an answer
	asked   int
	schemas adminapi.Schemas
	chassis []string
	beyond  adminapi.BeyondVXLAN
}

// handler serves the member.
func (m *fakeMember) handler() http.Handler { return adminapi.Handler(m, http.NotFoundHandler()) }

func (m *fakeMember) BeyondVXLAN(context.Context) (adminapi.BeyondVXLAN, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.beyond, nil
}

// setBeyond sets the counts of BeyondVXLAN.
func (m *fakeMember) setBeyond(beyond adminapi.BeyondVXLAN) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beyond = beyond
}

func (m *fakeMember) Chassis(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.chassis), nil
}

func (m *fakeMember) RemoveChassis(_ context.Context, names []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.chassis = slices.DeleteFunc(m.chassis, func(name string) bool { return slices.Contains(names, name) })
	return nil
}

// register adds chassis to the southbound database.
func (m *fakeMember) register(names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.chassis = append(m.chassis, names...)
}

func (m *fakeMember) Schemas(context.Context) (adminapi.Schemas, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.schemas, nil
}

func (m *fakeMember) Convert(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.schemas.Database = m.schemas.Image
	return nil
}

func (m *fakeMember) Status(context.Context) (adminapi.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	return m.status, m.silence
}

func (m *fakeMember) set(change func(*adminapi.Status)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.status)
}

// offer sets the schema versions of the database and of the image.
func (m *fakeMember) offer(database, image string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.schemas = adminapi.Schemas{Database: database, Image: image}
}

func (m *fakeMember) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// fakeArchive implements only the status of an archive.
type fakeArchive struct {
	adminapi.Archive
	fakeMember
}

func (a *fakeArchive) Status(ctx context.Context) (adminapi.Status, error) {
	return a.fakeMember.Status(ctx)
}

// silent makes the member fail with an error instead of an answer; nil ends that.
func (m *fakeMember) silent(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silence = err
}

// mount returns a function that writes a Secret's files into a directory, as a kubelet does, and returns the directory.
func (w *world) mount(secret string) func() string {
	directory := filepath.Join(w.mounts, secret)
	return func() string {
		var s corev1.Secret
		if err := w.admin.Get(context.Background(), client.ObjectKey{Namespace: testNamespace, Name: secret}, &s); err != nil {
			return directory // unchanged, because the test may be over
		}
		if err := os.MkdirAll(directory, 0o700); err != nil {
			panic(err)
		}
		for name, data := range s.Data {
			if err := os.WriteFile(filepath.Join(directory, name), data, 0o600); err != nil {
				panic(err)
			}
		}
		return directory
	}
}
