// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package soak creates, changes and deletes VPCs, subnets, namespaces, pods and address reservations in random order while it kills
// the controller. It checks that the database then equals the one that a fresh controller writes, and that nothing is left after
// all objects are deleted.
package soak

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// clients is the number of concurrent requests of users.
const clients = 8

// limit is the time limit of each wait. A working controller needs a small part of it.
const limit = 5 * time.Minute

// soak is a run.
type soak struct {
	*world
	*maker
}

func TestSoak(t *testing.T) {
	gate.Skip(t, gate.Long)
	drawn := seed.New(t)
	m := &maker{
		sizes: sizes{
			vpcs: setting("SOAK_VPCS", 6), subnets: max(subnetsPerPool, setting("SOAK_SUBNETS", 24)), pods: setting("SOAK_PODS", 80),
			namespaces: 8, nodes: setting("SOAK_NODES", 4), kills: setting("SOAK_KILLS", 3),
		},
		random: seed.Rand(drawn, 1),
	}
	t.Logf("%+v", m.sizes)
	s := &soak{world: newWorld(t), maker: m}
	s.populate()
	s.start()
	empty := s.settle(limit)

	s.through("create", s.all(), s.create)
	s.sameAsFresh(limit)
	s.through("churn", s.all(), s.replace)
	s.withdrawReservations()
	s.sameAsFresh(limit)
	s.through("delete", s.all(), s.remove)
	s.sweep()
	s.eventually(limit, func() string {
		if busy := s.idle(); busy != "" {
			return "the controller is busy: " + busy
		}
		return s.left()
	})
	if diff := empty.Differences(s.settle(limit)); diff != "" {
		s.keepLog()
		t.Errorf("everything is deleted, and the database differs from the first state (-), it is now (+):\n%s", diff)
	}
}

// setting returns a number from the environment, or the default.
func setting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// populate creates the nodes and namespaces.
func (s *soak) populate() {
	s.Helper()
	for i := range s.nodes {
		must.Succeed(s, s.client.Create(s.Context(), s.node(i)))
	}
	for i := range s.namespaces {
		must.Succeed(s, s.client.Create(s.Context(), s.namespace(i)))
	}
}

// through calls do for each object, many at a time. At random times it kills the controller and starts it again after a while.
func (s *soak) through(what string, objects []client.Object, do func(ctx context.Context, o client.Object, dice int) error) {
	s.Helper()
	var kills []int
	for range s.kills {
		kills = append(kills, s.random.IntN(len(objects)))
	}
	slices.Sort(kills)
	var group errgroup.Group
	group.SetLimit(clients)
	for i, o := range objects {
		if len(kills) > 0 && i >= kills[0] && s.controller != nil {
			s.kill()
		}
		if s.controller == nil && i >= kills[0]+s.random.IntN(len(objects)/s.kills+1) {
			kills = kills[1:]
			s.start()
		}
		dice := s.random.IntN(100)
		group.Go(func() error { return do(s.Context(), o, dice) })
	}
	must.Succeed(s, group.Wait())
	if s.controller == nil {
		s.start()
	}
	s.Logf("%s: %d objects; the controller was started %d times so far", what, len(objects), s.started)
}

func (s *soak) create(ctx context.Context, o client.Object, _ int) error {
	err := s.client.Create(ctx, o)
	// Its namespace may be deleted or terminating.
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// replace randomly deletes the object, recreates it, removes its finalizers like an impatient user, deletes its namespace without
// its content, or leaves it alone.
func (s *soak) replace(ctx context.Context, o client.Object, dice int) error {
	switch {
	case dice < 40:
		return nil
	case dice < 55 && o.GetNamespace() != "":
		if dice < 44 {
			return s.removeNamespace(ctx, o.GetNamespace())
		}
		return s.delete(ctx, o)
	case dice < 60:
		return s.removeByForce(ctx, o)
	case dice < 70:
		return s.delete(ctx, o)
	}
	if err := s.delete(ctx, o); err != nil {
		return err
	}
	return s.create(ctx, o, 0)
}

func (s *soak) remove(ctx context.Context, o client.Object, dice int) error {
	if dice < 5 {
		return s.removeByForce(ctx, o)
	}
	return s.delete(ctx, o)
}

// delete deletes an object without a grace period.
func (s *soak) delete(ctx context.Context, o client.Object) error {
	return client.IgnoreNotFound(s.client.Delete(ctx, o, client.GracePeriodSeconds(0)))
}

func (s *soak) removeByForce(ctx context.Context, o client.Object) error {
	if err := s.delete(ctx, o); err != nil {
		return err
	}
	bare := o.DeepCopyObject().(client.Object)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	return client.IgnoreNotFound(s.client.Patch(ctx, bare, patch))
}

// removeNamespace deletes a namespace without deleting its content, and creates it again for later objects.
func (s *soak) removeNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := s.delete(ctx, ns); err != nil {
		return err
	}
	if _, err := s.clients.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	again := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := s.client.Create(ctx, again)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// withdrawReservations deletes the reservations of pods that have addresses of other subnets, in VPCs that do not exist. Such a reservation
// replaces the IP object that would prove the addresses to a controller without a database, and the VPC that allows them was deleted: the pod
// has to be deleted, and the databases would differ until then.
func (s *soak) withdrawReservations() {
	s.Helper()
	s.settle(limit)
	s.each(&corev1.PodList{}, func(o client.Object) {
		vpc, subnet := o.GetAnnotations()[kubeovnv1.AnnotationLogicalRouter.Key()], o.GetAnnotations()[kubeovnv1.AnnotationLogicalSwitch.Key()]
		if vpc == "" {
			return
		}
		err := s.client.Get(s.Context(), client.ObjectKey{Name: vpc}, &kubeovnv1.Vpc{})
		must.Succeed(s, client.IgnoreNotFound(err))
		if err == nil {
			return
		}
		ip := &kubeovnv1.IP{}
		err = s.client.Get(s.Context(), client.ObjectKey{Name: o.GetName() + "." + o.GetNamespace()}, ip)
		must.Succeed(s, client.IgnoreNotFound(err))
		if err == nil && ip.Spec.Subnet != subnet {
			must.Succeed(s, s.delete(s.Context(), ip))
		}
	})
}

// sweep deletes objects that a pass over the objects missed, such as pods whose namespaces did not exist.
func (s *soak) sweep() {
	s.Helper()
	for _, list := range []client.ObjectList{&corev1.PodList{}, &appsv1.StatefulSetList{}} {
		s.each(list, func(o client.Object) {
			must.Succeed(s, s.delete(s.Context(), o))
		})
	}
	for _, list := range []client.ObjectList{&kubeovnv1.IPPoolList{}, &kubeovnv1.SubnetList{}, &kubeovnv1.VpcList{}} {
		s.each(list, func(o client.Object) {
			if !standing(o) {
				must.Succeed(s, s.delete(s.Context(), o))
			}
		})
	}
}

// standing reports whether an object always exists.
func standing(o client.Object) bool {
	return slices.Contains([]string{kubeovnv1.DefaultVpc, kubeovnv1.DefaultSubnet, kubeovnv1.JoinSubnet}, o.GetName())
}

func (s *soak) each(list client.ObjectList, f func(client.Object)) {
	s.Helper()
	must.Succeed(s, s.client.List(s.Context(), list))
	must.Succeed(s, apimeta.EachListItem(list, func(item runtime.Object) error {
		f(item.(client.Object))
		return nil
	}))
}

// left returns a description of a deleted object that still exists, or "".
func (s *soak) left() string {
	var wrong string
	for _, list := range []client.ObjectList{&corev1.PodList{}, &kubeovnv1.SubnetList{}, &kubeovnv1.VpcList{}, &kubeovnv1.IPPoolList{}, &kubeovnv1.IPList{}} {
		s.each(list, func(o client.Object) {
			if ip, ok := o.(*kubeovnv1.IP); ok && ip.Spec.Namespace == "" || standing(o) {
				return
			}
			wrong = fmt.Sprintf("%T %s is still there: %+v", o, o.GetName(), o)
		})
	}
	return wrong
}
