// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"crypto/sha256"
	"encoding/hex"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// KindTrafficMirror is the kind of owners of mirrors.
const KindTrafficMirror = "TrafficMirror"

const (
	keyMirrorRow = "mirror"
	idMirror     = "traffic-mirror"
)

// TrafficMirrorOwner owns a mirror and its membership in the mirror_rules of ports.
func TrafficMirrorOwner(name string) desired.Owner {
	return desired.Owner{Kind: KindTrafficMirror, Name: name}
}

// TrafficMirrorInputs are the inputs of TrafficMirror.
type TrafficMirrorInputs struct {
	Name string
	Spec kubeovnv1.TrafficMirrorSpec
	// Ports are the selected ports, sorted.
	Ports []kubeovnv1.Port
}

// mirrorFilters are the directions as OVN names them: from the port of the pod, or to it (ovn-nb(5), Mirror).
var mirrorFilters = map[kubeovnv1.TrafficMirrorDirection]nb.MirrorFilter{
	kubeovnv1.TrafficMirrorFrom: nb.MirrorFilterFromLport,
	kubeovnv1.TrafficMirrorTo:   nb.MirrorFilterToLport,
	kubeovnv1.TrafficMirrorBoth: nb.MirrorFilterBoth,
	"":                          nb.MirrorFilterBoth,
}

// TrafficMirror returns the mirror of a TrafficMirror, to which the selected ports refer. Without ports it returns none. The mirror is a member of the
// ports' mirror_rules, so that mirrors of other systems on the same ports stay.
func TrafficMirror(in TrafficMirrorInputs) []desired.Row {
	if len(in.Ports) == 0 {
		return nil
	}
	mirror := &nb.Mirror{
		Name: mirrorName(in.Name), Type: nb.MirrorTypeGre, Sink: in.Spec.Sink, Index: int(in.Spec.Key), Filter: mirrorFilters[in.Spec.Direction],
		ExternalIDs: map[string]string{idMirror: in.Name},
	}
	if in.Spec.Type == kubeovnv1.TrafficMirrorERSPAN {
		mirror.Type = nb.MirrorTypeErspan
	}
	row := desired.Row{Key: keyMirrorRow, Model: mirror}
	for _, port := range in.Ports {
		row.Members = append(row.Members, desired.PortMirrors(PodPortRef(port)))
	}
	return []desired.Row{row}
}

// mirrorName returns the name of the mirror. ovn-controller makes a port with the prefix `ovn-`, and a name of OpenFlow has at most 15 characters.
func mirrorName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "m" + hex.EncodeToString(sum[:5])
}
