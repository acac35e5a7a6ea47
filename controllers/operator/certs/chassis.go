// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/serving/pki"
)

// nodeNameClaim is the key under which the API server reports the node of the pod that a token is bound to.
const nodeNameClaim = "authentication.kubernetes.io/node-name"

// ChassisReconciler issues certificates to nodes. A request must come from the ServiceAccount of ovs-ovn and name the
// node that its token is bound to, and this Node must exist. All other requests are denied, with the reason in the request's status.
type ChassisReconciler struct {
	client.Client
	// APIReader bypasses the cache.
	APIReader client.Reader
	// Namespace of the operator and every operand.
	Namespace string
	// Now is the clock.
	Now func() time.Time
}

// SetupWithManager adds the reconciler to a manager.
func (r *ChassisReconciler) SetupWithManager(mgr ctrl.Manager) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		request, isRequest := o.(*certificatesv1.CertificateSigningRequest)
		return isRequest && request.Spec.SignerName == render.ChassisSigner
	})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("chassis").
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(ours)).
		WithOptions(k8s.Workers(1)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of chassis certificates: %w", err)
	}
	return nil
}

// Reconcile takes one step for a request: deny, approve, or sign it.
func (r *ChassisReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var request certificatesv1.CertificateSigningRequest
	if err := r.Get(ctx, req.NamespacedName, &request); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	switch {
	case request.Spec.SignerName != render.ChassisSigner, len(request.Status.Certificate) > 0,
		decided(&request, certificatesv1.CertificateDenied), decided(&request, certificatesv1.CertificateFailed):
		return ctrl.Result{}, nil
	}
	parsed, refusal := r.check(&request)
	if refusal == nil {
		var err error
		if refusal, err = r.checkNode(ctx, parsed.Subject.CommonName); err != nil {
			return ctrl.Result{}, err
		}
	}
	approved := decided(&request, certificatesv1.CertificateApproved)
	switch {
	case refusal != nil && approved:
		return ctrl.Result{}, r.fail(ctx, &request, refusal)
	case refusal != nil:
		return ctrl.Result{}, r.decide(ctx, &request, certificatesv1.CertificateDenied, "NotThisNode", refusal.Error())
	case !approved:
		return ctrl.Result{}, r.decide(ctx, &request, certificatesv1.CertificateApproved, "ChassisOfNode",
			"the request comes from ovs-ovn on the node that it names")
	}
	return ctrl.Result{}, r.sign(ctx, &request, parsed)
}

func decided(request *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == kind
	})
}

// check validates a request. It returns the parsed PKCS #10 request, or the reason for a denial.
func (r *ChassisReconciler) check(request *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	account := "system:serviceaccount:" + r.Namespace + ":" + render.OpenVSwitchAccount
	if request.Spec.Username != account {
		return nil, fmt.Errorf("the requester is %q: only %q may ask for chassis certificates", request.Spec.Username, account)
	}
	nodes := request.Spec.Extra[nodeNameClaim]
	if len(nodes) != 1 || nodes[0] == "" {
		return nil, errors.New("the requester's token is not bound to a node: use the pod's token")
	}
	block, rest := pem.Decode(request.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
		return nil, errors.New("the request is not one PEM block CERTIFICATE REQUEST")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, errors.New("the request cannot be parsed (PKCS #10)")
	}
	if err := parsed.CheckSignature(); err != nil {
		return nil, errors.New("the request's signature is not by its own key")
	}
	if parsed.Subject.CommonName != nodes[0] {
		return nil, fmt.Errorf("the common name is %q, but the requester runs on node %q", parsed.Subject.CommonName, nodes[0])
	}
	if len(parsed.DNSNames)+len(parsed.IPAddresses)+len(parsed.EmailAddresses)+len(parsed.URIs) > 0 {
		return nil, errors.New("the request has alternative names: a chassis has none")
	}
	return parsed, checkUsages(request.Spec.Usages)
}

// checkNode returns a refusal if the Node does not exist: the tokens of its pods can be valid for some time after its deletion. It reads
// from the API server, because the cache can still have the Node after the CA was replaced to lock the node out.
func (r *ChassisReconciler) checkNode(ctx context.Context, name string) (refusal, err error) {
	switch err := r.APIReader.Get(ctx, types.NamespacedName{Name: name}, &corev1.Node{}); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("node %q does not exist", name), nil
	case err != nil:
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	return nil, nil
}

// checkUsages requires exactly the usages of a TLS client.
func checkUsages(usages []certificatesv1.KeyUsage) error {
	wanted := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}
	for _, u := range wanted {
		if !slices.Contains(usages, u) {
			return fmt.Errorf("the usage %q is missing", u)
		}
	}
	for _, u := range usages {
		if !slices.Contains(wanted, u) {
			return fmt.Errorf("the usage %q is not for a chassis", u)
		}
	}
	return nil
}

func (r *ChassisReconciler) decide(ctx context.Context, request *certificatesv1.CertificateSigningRequest,
	kind certificatesv1.RequestConditionType, reason, message string,
) error {
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
	if err := r.SubResource("approval").Update(ctx, request); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("set request %s %s: %w", request.Name, kind, err)
	}
	return nil
}

// fail marks a request as failed that another approver approved but that is not valid.
func (r *ChassisReconciler) fail(ctx context.Context, request *certificatesv1.CertificateSigningRequest, refusal error) error {
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerRefused", Message: refusal.Error(),
	})
	return r.writeStatus(ctx, request)
}

func (r *ChassisReconciler) sign(ctx context.Context, request *certificatesv1.CertificateSigningRequest, parsed *x509.CertificateRequest) error {
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: r.Namespace, Name: SecretPrefix + Chassis}
	if err := r.APIReader.Get(ctx, key, &secret); err != nil {
		return fmt.Errorf("get the authority of chassis: %w", err)
	}
	authority, err := pki.ParseAuthority(secret.Data)
	if err != nil {
		return fmt.Errorf("use the authority of chassis: %w", err)
	}
	lifetime := pki.LeafLifetime
	if s := request.Spec.ExpirationSeconds; s != nil {
		lifetime = time.Duration(*s) * time.Second
	}
	if request.Status.Certificate, err = authority.SignRequest(parsed, lifetime, r.Now()); err != nil {
		return fmt.Errorf("sign request %s: %w", request.Name, err)
	}
	return r.writeStatus(ctx, request)
}

func (r *ChassisReconciler) writeStatus(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	if err := r.Status().Update(ctx, request); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of request %s: %w", request.Name, err)
	}
	return nil
}
