// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/lookup"
)

// The API server gives all objects of one file the same time of creation, in seconds, and random UIDs.
func TestPrecedenceDoesNotDependOnUIDs(t *testing.T) {
	now := metav1.NewTime(time.Unix(1_800_000_000, 0))
	meta := func(name, uid string, created metav1.Time) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, UID: types.UID(uid), CreationTimestamp: created}
	}
	earlier := metav1.NewTime(now.Add(-time.Second))
	for name, pair := range map[string][2]client.Object{
		"a Vpc precedes a Subnet of the same name and second": {
			&kubeovnv1.Vpc{ObjectMeta: meta("shop", "b", now)}, &kubeovnv1.Subnet{ObjectMeta: meta("shop", "a", now)},
		},
		"an older Subnet precedes a Vpc of its name": {
			&kubeovnv1.Subnet{ObjectMeta: meta("shop", "b", earlier)}, &kubeovnv1.Vpc{ObjectMeta: meta("shop", "a", now)},
		},
		"of two objects of one second the first by name precedes": {
			&kubeovnv1.Subnet{ObjectMeta: meta("a", "b", now)}, &kubeovnv1.Vpc{ObjectMeta: meta("b", "a", now)},
		},
	} {
		if !lookup.Precedes(pair[0], pair[1]) || lookup.Precedes(pair[1], pair[0]) {
			t.Errorf("%s: it does not", name)
		}
	}
}
