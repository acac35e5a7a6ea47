// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// convertSchema converts a database to the schema of its members' image. It runs when all members have that image and
// before northd, which uses the schema, is replaced. It never converts to an older schema: older programs ignore tables
// and columns that they do not know.
func (p *run) convertSchema(ctx context.Context) error {
	set, isSet := p.Objects.Live(p.db.Workload).(*appsv1.StatefulSet)
	if !isSet || p.record.Leader == "" {
		return nil
	}
	template := set.Spec.Template.Annotations[render.TemplateAnnotation]
	of := strings.Join([]string{p.db.Flag, p.record.ClusterID, template}, "/")
	pods := p.Report.PodsOf(p.db.Workload)
	if p.converted[p.db.Flag] == of || len(pods) < int(*set.Spec.Replicas) {
		return nil
	}
	for _, pod := range pods {
		if seen := p.Replacer.See(p.Input.Input, p.db.Workload, template, pod); !seen.Current || !seen.Serves() {
			return nil
		}
	}
	var schemas adminapi.Schemas
	err := p.administer(p.record.Leader, func(leader *adminapi.Client) (err error) {
		if schemas, err = leader.Schemas(ctx); err != nil || !olderSchema(schemas.Database, schemas.Image) {
			return err
		}
		return leader.Convert(ctx)
	})
	if errors.Is(err, adminapi.ErrUnsupported) {
		return nil // the operator is newer than the requested image
	}
	if err != nil {
		return &status.Halt{Reason: "ConvertingSchema", Retry: err, Message: fmt.Sprintf("%s: its schema cannot be looked at or converted", p.db.Title)}
	}
	if olderSchema(schemas.Database, schemas.Image) {
		p.Recorder.Eventf(p.OVNCluster, nil, corev1.EventTypeNormal, "SchemaConverted", "Reconcile", "%s: from schema %s to %s",
			p.db.Title, schemas.Database, schemas.Image)
	}
	if p.converted == nil {
		p.converted = map[string]string{}
	}
	p.converted[p.db.Flag] = of
	return nil
}

// olderSchema compares versions `x.y.z` (ovsdb(5), schema versions).
func olderSchema(a, b string) bool {
	left, errA := version.ParseGeneric(a)
	right, errB := version.ParseGeneric(b)
	return errA == nil && errB == nil && left.LessThan(right)
}
