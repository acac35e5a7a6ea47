// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"errors"
	"strings"
)

// Announcement defines which nodes announce the addresses of an object by BGP.
// +kubebuilder:object:generate=false
type Announcement string

// Values of Announcement.
const (
	// AnnounceNone: no node announces the object.
	AnnounceNone Announcement = ""
	// AnnounceCluster: every node with a speaker announces it.
	AnnounceCluster Announcement = "cluster"
	// AnnounceLocal: only nodes with pods of the object announce it.
	AnnounceLocal Announcement = "local"
)

// ParseAnnouncement parses a value of AnnotationBGP: true and cluster are AnnounceCluster, false and an empty value AnnounceNone.
func ParseAnnouncement(s string) (Announcement, error) {
	switch strings.TrimSpace(s) {
	case "true", "cluster":
		return AnnounceCluster, nil
	case "local":
		return AnnounceLocal, nil
	case "false", "":
		return AnnounceNone, nil
	}
	return AnnounceNone, errors.New("must be true, cluster, local or false")
}
