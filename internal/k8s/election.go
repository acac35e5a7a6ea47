// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Identity is the pod that a process runs in, from the downward API.
type Identity struct{ Namespace, Pod string }

// OwnIdentity reads the identity from the environment.
func OwnIdentity() (Identity, error) {
	id := Identity{Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME")}
	if id.Namespace == "" || id.Pod == "" {
		return Identity{}, errors.New("POD_NAMESPACE and POD_NAME are not both set: give them by the downward API, for leaders hold their Lease by these names")
	}
	return id, nil
}

// Lock returns the Lease of this name as the lock of a leader election. Its holder is the pod, not the process: a process that
// restarts after a crash still holds the Lease, instead of waiting until it expires. The kubelet never runs two containers with
// one name in a pod at the same time.
func (id Identity) Lock(config *rest.Config, lease string, renewDeadline time.Duration) (resourcelock.Interface, error) {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, id.Namespace, lease,
		resourcelock.ResourceLockConfig{Identity: id.Pod}, config, renewDeadline)
	if err != nil {
		return nil, fmt.Errorf("make the lock of the Lease %s: %w", lease, err)
	}
	return lock, nil
}
