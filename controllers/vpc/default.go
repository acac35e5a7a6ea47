// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// CreateDefault creates the default Vpc if it does not exist. It does not change an existing one.
func CreateDefault(ctx context.Context, c client.Client) error {
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}
	if err := k8s.CreateMissing(ctx, c, vpc); err != nil {
		return fmt.Errorf("make the default VPC: %w", err)
	}
	return nil
}
