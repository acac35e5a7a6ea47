// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package render builds the kustomizations of config/ without a kustomize program.
package render

import (
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/filters/imagetag"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Image is the name of the image in config/manager.
const Image = "kiln.local/kiln"

// YAML returns the objects of a kustomization as documents of YAML, like `kustomize build`. All containers of Image run image, unless that is
// empty.
func YAML(dir, image string) ([]byte, error) {
	objects, err := build(dir, image)
	if err != nil {
		return nil, err
	}
	text, err := objects.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", dir, err)
	}
	return text, nil
}

// Objects returns the objects of a kustomization, in its order.
func Objects(dir, image string) ([]*unstructured.Unstructured, error) {
	built, err := build(dir, image)
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, 0, built.Size())
	for _, resource := range built.Resources() {
		text, err := resource.MarshalJSON() // Map has numbers that an Unstructured must not have
		if err != nil {
			return nil, fmt.Errorf("encode %s of %s: %w", resource.CurId(), dir, err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			return nil, fmt.Errorf("decode %s of %s: %w", resource.CurId(), dir, err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

func build(dir, image string) (resmap.ResMap, error) {
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, err)
	}
	if image == "" {
		return objects, nil
	}
	replacement, err := replace(image)
	if err != nil {
		return nil, err
	}
	containers := types.FsSlice{{Path: "spec/template/spec/containers[]/image"}}
	if err := objects.ApplyFilter(imagetag.Filter{ImageTag: replacement, FsSlice: containers}); err != nil {
		return nil, fmt.Errorf("set the image of %s: %w", dir, err)
	}
	return objects, nil
}

// replace returns the transformation from Image to a reference with a tag or a digest.
func replace(image string) (types.Image, error) {
	reference, err := name.ParseReference(image, name.StrictValidation)
	if err != nil {
		return types.Image{}, fmt.Errorf("image %s: %w", image, err)
	}
	replacement := types.Image{Name: Image, NewName: reference.Context().Name()}
	if digest, ok := reference.(name.Digest); ok {
		replacement.Digest = digest.DigestStr()
	} else {
		replacement.NewTag = reference.Identifier()
	}
	return replacement, nil
}
