// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// mayUsePools returns a *problem when the pod's namespace may not use pools that the pod names, or their subnets.
func (r *Reconciler) mayUsePools(ctx context.Context, pod *corev1.Pod, pools []*kubeovnv1.IPPool) error {
	for _, pool := range pools {
		if denied := r.Grants.Pool(pod.Namespace, pool); denied != "" {
			return &problem{message: denied, subnets: []string{pool.Spec.Subnet}}
		}
		if err := r.mayUseSubnet(ctx, pod, pool.Spec.Subnet); err != nil {
			return err
		}
	}
	return nil
}

// mayUseSubnet returns a *problem when the pod's namespace may not use a subnet. If the subnet does not exist, the allocation reports it.
func (r *Reconciler) mayUseSubnet(ctx context.Context, pod *corev1.Pod, name string) error {
	s, err := r.findSubnet(ctx, name)
	if err != nil {
		return err
	}
	if s == nil {
		return nil
	}
	denied, err := r.Grants.Subnet(ctx, pod.Namespace, s)
	if err == nil && denied != "" {
		err = &problem{message: denied, subnets: []string{name}}
	}
	return err
}

// securesPort reports whether the pod's port drops packets from addresses other than the pod's own. A pod may request this, but cannot
// opt out.
func (r *Reconciler) securesPort(pod *corev1.Pod, s *kubeovnv1.Subnet) bool {
	return kubeovnv1.IsTrue(pod.Annotations, kubeovnv1.AnnotationPortSecurity) || r.securesSubnet(s)
}

// securesSubnet reports whether all ports of a subnet do so.
func (r *Reconciler) securesSubnet(s *kubeovnv1.Subnet) bool {
	return r.SecurePorts && s.Spec.PortSecurity == "" || s.Spec.PortSecurity == kubeovnv1.PortSecurityEnforced
}

// forwards reports whether the pod requests packets to MAC addresses that no port has.
func forwards(pod *corev1.Pod) bool {
	return kubeovnv1.IsTrue(pod.Annotations, kubeovnv1.AnnotationLayer2Forward)
}

// warnOfForwarding warns the pod's user if port security is on: the port drops packets from other addresses, and gets no packets to them
// either (ovn-nb(5), port_security).
func (r *Reconciler) warnOfForwarding(ctx context.Context, pod *corev1.Pod, subnet string) {
	if s, err := r.findSubnet(ctx, subnet); err == nil && s != nil && r.securesPort(pod, s) {
		k8s.Warn(r.Recorder, pod, reasonNotSupported, fmt.Sprintf("annotation %s has no effect, because the port accepts the pod's own addresses only: "+
			"set portSecurity of subnet %s to Requested, and remove annotation %s", kubeovnv1.AnnotationLayer2Forward.Key(), subnet, keyPortSecurity))
	}
}
