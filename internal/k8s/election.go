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

// Identity is the pod that a process runs in, by the downward API.
type Identity struct{ Namespace, Pod string }

// OwnIdentity reads it from the environment.
func OwnIdentity() (Identity, error) {
	id := Identity{Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME")}
	if id.Namespace == "" || id.Pod == "" {
		return Identity{}, errors.New("POD_NAMESPACE and POD_NAME are not both set: give them by the downward API, for leaders hold their Lease by these names")
	}
	return id, nil
}

// Lock is the Lease of this name, for the election of a leader. The pod holds it, not the process: one that is started again after a crash has
// its Lease still, instead of waiting like the others until that has run out. The kubelet never runs two containers of a pod by one name.
func (id Identity) Lock(config *rest.Config, lease string, renewDeadline time.Duration) (resourcelock.Interface, error) {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, id.Namespace, lease,
		resourcelock.ResourceLockConfig{Identity: id.Pod}, config, renewDeadline)
	if err != nil {
		return nil, fmt.Errorf("make the lock of the Lease %s: %w", lease, err)
	}
	return lock, nil
}
