// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kiln-net/kiln/internal/serving/pki"
	"github.com/kiln-net/kiln/supervisor"
)

// Files of the chassis' certificate.
const (
	keyFile         = "tls.key"
	certificateFile = "tls.crt"
)

// ChassisTrustFile is the CA bundle of chassis certificates in Options.TrustDir. The operator writes it.
const ChassisTrustFile = "sb-client.crt"

// SignerName is the signer of chassis certificates: the operator.
const SignerName = "kubeovn.io/chassis"

const (
	// renewPause is the minimum pause between two certificates that are due when they are issued. A certificate from a CA that expires
	// soon can be past two thirds of its lifetime, and the CA bundle on the node can be older than the certificate.
	renewPause = time.Minute
	// lastRenewPause bounds the back-off while new certificates are not of a CA in the bundle.
	lastRenewPause = 10 * time.Minute
)

// certificate maintains the chassis' client certificate. Its common name is the chassis, which limits the rows that the node may
// write (ovsdb-server(7), RBAC). The key never leaves the node.
type certificate struct {
	dir, node string
	// trust is the file with the CA bundle of chassis certificates; it need not exist.
	trust    string
	requests certificatesv1.CertificateSigningRequestInterface
	log      logr.Logger
	denials  denials
}

// denials is the back-off after a request that was denied or that the signer failed to sign: such requests stay in the API
// server for an hour.
type denials struct{ first, last time.Duration }

var defaultDenials = denials{first: 20 * time.Second, last: 10 * time.Minute}

// next returns the pause after err; pause is the previous one.
func (d denials) next(pause time.Duration, err error) time.Duration {
	if !errors.Is(err, errDenied) {
		return 0
	}
	return min(max(2*pause, d.first), d.last)
}

// errDenied is returned when a request was denied or has failed, so that it will never get a certificate.
var errDenied = errors.New("the request was refused")

// run keeps a valid certificate in the directory until ctx ends, and calls ready whenever there is one. It requests a new
// certificate at each start, while the existing one is in use. It renews the certificate after two thirds of its lifetime, or once
// the CA bundle no longer has its CA: the southbound database then refuses it.
func (c certificate) run(ctx context.Context, ready func()) {
	if err := c.finishStore(); err != nil {
		c.log.Error(err, "the chassis has no usable certificate until the operator signs one")
	}
	if _, err := c.load(); err == nil {
		ready()
	}
	var untrusted time.Duration // the pause after a certificate of a CA that is not in the bundle
	for ctx.Err() == nil {
		var pause time.Duration
		supervisor.Retry(ctx,
			func(err error) {
				c.log.Error(err, "the chassis has no new certificate yet", "nextRequestIn", pause.String())
			},
			func() error {
				if supervisor.Pause(ctx, pause); ctx.Err() != nil {
					return ctx.Err()
				}
				err := c.renew(ctx)
				pause = c.denials.next(pause, err)
				return err
			})
		current, err := c.load()
		if err != nil || ctx.Err() != nil {
			continue // the files were removed in between, or ctx ended
		}
		trusted := c.trusts(current)
		ready()
		c.log.Info("the chassis has a certificate", "until", current.NotAfter)
		if trusted {
			untrusted = 0
		} else {
			untrusted = min(max(2*untrusted, renewPause), lastRenewPause)
			c.log.Info("the CA bundle on the node does not have the CA of the chassis' certificate", "bundle", c.trust, "checkedAgainIn", untrusted.String())
			supervisor.Pause(ctx, untrusted)
		}
		c.awaitRenewal(ctx, current)
	}
}

// awaitRenewal returns when the certificate has to be replaced, or ctx ends.
func (c certificate) awaitRenewal(ctx context.Context, leaf *x509.Certificate) {
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	ctx, cancel := context.WithTimeout(ctx, max(renewPause, time.Until(leaf.NotBefore.Add(lifetime*2/3))))
	defer cancel()
	if c.trust == "" {
		<-ctx.Done()
		return
	}
	reported := false // once: the attempts continue until the certificate is renewed, which can be months
	report := func(err error) {
		if !reported {
			c.log.Error(err, "the CA bundle is read every few seconds, because its changes cannot be watched", "bundle", c.trust)
		}
		reported = true
	}
	supervisor.Retry(ctx, report, func() error {
		if !c.trusts(leaf) { // checked at each attempt, because the watch fails while the node has no free inotify instance
			return nil
		}
		return awaitChange(ctx, filepath.Dir(c.trust), func() (bool, error) { return !c.trusts(leaf), nil })
	})
}

// trusts reports whether the CA bundle has the CA of the certificate. During a rotation the bundle has the old and the new CA, so
// that nodes renew their certificates at different times. trusts returns true if it cannot read the bundle.
func (c certificate) trusts(leaf *x509.Certificate) bool {
	bundle, err := os.ReadFile(c.trust)
	if err != nil {
		return true
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return true
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// load returns the certificate, with an error if it is incomplete, not valid now, or of another node.
func (c certificate) load() (*x509.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.dir, certificateFile), filepath.Join(c.dir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("load the certificate of the chassis: %w", err)
	}
	return pair.Leaf, c.check(pair.Leaf)
}

// check returns an error if the certificate is not valid now or is not for this node.
func (c certificate) check(leaf *x509.Certificate) error {
	now := time.Now()
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) || leaf.Subject.CommonName != c.node {
		return fmt.Errorf("the certificate of chassis %s, from %s until %s, is not valid now (%s), or is not for %s: is the node's clock right?",
			leaf.Subject.CommonName, leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339), now.Format(time.RFC3339), c.node)
	}
	return nil
}

// renew makes a key, requests a certificate for it and stores both. An invalid certificate does not replace the stored one.
func (c certificate) renew(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the key of the chassis: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the key of the chassis: %w", err)
	}
	issued, err := c.request(ctx, key)
	if err != nil {
		return err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	pair, err := tls.X509KeyPair(issued, keyPEM)
	if err == nil {
		err = c.check(pair.Leaf)
	}
	if err != nil {
		return fmt.Errorf("the certificate that was issued: %w", err)
	}
	return c.store(issued, keyPEM)
}

// store replaces the certificate before the key: when ovn-controller sees that the key changed and then that the certificate
// changed, it reloads both. It misses a certificate that changes after that. Both are on the disk before the first is replaced, so
// that finishStore can complete an interrupted store.
func (c certificate) store(issued, key []byte) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the chassis' certificate: %w", err)
	}
	for name, content := range map[string][]byte{certificateFile: issued, keyFile: key} {
		if err := writeSynced(filepath.Join(c.dir, name+".new"), content); err != nil {
			return fmt.Errorf("write the chassis' certificate: %w", err)
		}
	}
	if err := c.place(certificateFile); err != nil {
		return err
	}
	return c.place(keyFile)
}

// finishStore completes a store that a crash interrupted after it had replaced the certificate. Otherwise that certificate would
// not match the stored key, and the node would have no usable pair until the operator signs another certificate.
func (c certificate) finishStore() error {
	if _, err := tls.LoadX509KeyPair(filepath.Join(c.dir, certificateFile), filepath.Join(c.dir, keyFile+".new")); err != nil {
		return nil //nolint:nilerr // there is no new key, or it is of a certificate that was not placed
	}
	return c.place(keyFile)
}

// place gives a new file its final name.
func (c certificate) place(name string) error {
	path := filepath.Join(c.dir, name)
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("replace the chassis' certificate: %w", err)
	}
	return nil
}

// writeSynced writes a file that survives a power failure.
func writeSynced(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Sync(), file.Close())
}

// request creates a CertificateSigningRequest, waits until it is signed, and returns the certificate as PEM.
func (c certificate) request(ctx context.Context, key *ecdsa.PrivateKey) ([]byte, error) {
	encoded, err := pki.EncodeRequest(&x509.CertificateRequest{Subject: pkix.Name{CommonName: c.node}}, key)
	if err != nil {
		return nil, err
	}
	filed, err := c.requests.Create(ctx, &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "chassis-" + c.node + "-"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    encoded,
			SignerName: SignerName,
			Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("file the certificate request: %w", err)
	}
	c.log.Info("waiting for the operator to sign the certificate request", "request", filed.Name)
	event, err := watchtools.UntilWithSync(ctx, c.watch(filed.Name), &certificates.CertificateSigningRequest{}, nil, settled)
	if err != nil {
		return nil, fmt.Errorf("wait for certificate request %s: %w", filed.Name, err)
	}
	request, ok := event.Object.(*certificates.CertificateSigningRequest)
	if !ok {
		return nil, fmt.Errorf("wait for certificate request %s: got a %T", filed.Name, event.Object)
	}
	return request.Status.Certificate, nil
}

func (c certificate) watch(name string) cache.ListerWatcher {
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return c.requests.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return c.requests.Watch(ctx, options)
		},
	}
}

// settled returns true once the request has its certificate, and an error if the request was deleted, denied or has failed.
func settled(event watch.Event) (bool, error) {
	request, ok := event.Object.(*certificates.CertificateSigningRequest)
	if event.Type == watch.Deleted {
		return false, errors.New("it was deleted")
	}
	if !ok {
		return false, nil
	}
	for _, condition := range request.Status.Conditions {
		if condition.Type == certificates.CertificateDenied || condition.Type == certificates.CertificateFailed {
			return false, fmt.Errorf("%w: %s: %s: %s", errDenied, condition.Type, condition.Reason, condition.Message)
		}
	}
	return len(request.Status.Certificate) > 0, nil
}
