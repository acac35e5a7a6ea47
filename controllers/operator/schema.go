// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// convertSchema converts a database to the schema of its members' image. It runs when all members have that image and
// before northd, which uses the schema, is replaced. It never converts to an older schema: older programs ignore tables
// and columns that they do not know.
func (r *Reconciler) convertSchema(ctx context.Context, p *pass, db render.Database) error {
	set, isSet := p.live[db.Workload].(*appsv1.StatefulSet)
	status := p.database(db)
	if !isSet || status.Leader == "" {
		return nil
	}
	template := set.Spec.Template.Annotations[render.TemplateAnnotation]
	of := strings.Join([]string{db.Flag, status.ClusterID, template}, "/")
	pods := p.podsOf(db.Workload)
	if r.converted[db.Flag] == of || len(pods) < int(*set.Spec.Replicas) {
		return nil
	}
	for _, pod := range pods {
		if seen := r.see(p, db.Workload, template, pod); !seen.Current || !seen.Serves() {
			return nil
		}
	}
	var schemas adminapi.Schemas
	err := r.administer(p, db, status.Leader, func(leader *adminapi.Client) (err error) {
		if schemas, err = leader.Schemas(ctx); err != nil || !olderSchema(schemas.Database, schemas.Image) {
			return err
		}
		return leader.Convert(ctx)
	})
	if errors.Is(err, adminapi.ErrUnsupported) {
		return nil // the operator is newer than the requested image
	}
	if err != nil {
		return &halt{reason: "ConvertingSchema", retry: err, message: fmt.Sprintf("%s: its schema cannot be looked at or converted", db.Title)}
	}
	if olderSchema(schemas.Database, schemas.Image) {
		r.Recorder.Eventf(p.cluster, nil, corev1.EventTypeNormal, "SchemaConverted", "Reconcile", "%s: from schema %s to %s",
			db.Title, schemas.Database, schemas.Image)
	}
	if r.converted == nil {
		r.converted = map[string]string{}
	}
	r.converted[db.Flag] = of
	return nil
}

// olderSchema compares versions `x.y.z` (ovsdb(5), schema versions).
func olderSchema(a, b string) bool {
	left, errA := version.ParseGeneric(a)
	right, errB := version.ParseGeneric(b)
	return errA == nil && errB == nil && left.LessThan(right)
}
