// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/workload"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// stopUnsupported removes optional operands from the spec of this pass while versions run that do not have them: an image without their command
// cannot start, and members of a version without kube-ovn-monitor let its certificate make all requests of the operator.
func (r *Reconciler) stopUnsupported(ctx context.Context, p *pass) error {
	p.images = map[string]string{}
	for _, o := range render.Operands {
		if o.Level == 0 || !o.Runs(&p.config.Spec) {
			continue
		}
		image, err := r.optionalImage(ctx, p, o)
		if err != nil {
			return err
		}
		p.images[o.Name] = image
		if image == "" {
			o.Stop(&p.config.Spec)
			p.Stopped = append(p.Stopped, o.Name)
		}
	}
	if len(p.Stopped) > 0 {
		p.Advise(fmt.Sprintf("%s: stopped, because database members run a version without them", strings.Join(p.Stopped, ", ")))
	}
	return nil
}

// optionalImage returns the image of an optional operand; empty if it must not run. While a level that decides is not known, an operand that exists
// stays as it is.
func (r *Reconciler) optionalImage(ctx context.Context, p *pass, o render.Operand) (string, error) {
	image := p.config.Image
	lowest, known := r.levelOf(p, image)
	if o.OperatorImage {
		for _, pod := range p.members() {
			level, reported := r.levelOf(p, pod.Spec.Containers[0].Image)
			lowest, known = min(lowest, level), known && reported
		}
		image = r.Image
	}
	switch {
	case lowest < o.Level:
		return "", nil
	case known:
		return image, nil
	}
	live, err := observed.Workload(ctx, p.objects, r.Namespace, o.Name)
	if live == nil || err != nil {
		return "", err
	}
	return workload.ProgressOf(live).Image, nil
}

// levelOf returns the level of an image, as members that run it report it. It is not known, and not limited, before the first report.
func (r *Reconciler) levelOf(p *pass, image string) (level int, known bool) {
	if image == r.Image {
		return adminapi.Level, true
	}
	for _, pod := range p.members() {
		if level, known := r.versions.Level(pod); known && pod.Spec.Containers[0].Image == image {
			return level, true
		}
	}
	return math.MaxInt, false
}

// members returns the pods of all databases.
func (p *pass) members() (pods []*corev1.Pod) {
	for _, db := range render.Databases {
		pods = append(pods, p.PodsOf(db.Workload)...)
	}
	return pods
}
