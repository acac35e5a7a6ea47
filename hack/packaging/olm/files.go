// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/packaging/render"
)

// Write writes a bundle to a directory, in which no manifests of other versions remain.
func Write(o Options, dir string) error {
	files, err := Bundle(o)
	if err != nil {
		return err
	}
	for _, name := range []string{"manifests", "metadata", "tests"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove the previous bundle: %w", err)
		}
	}
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the directory of %s: %w", path, err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
	}
	return nil
}

// dockerfile builds the image of a bundle from its directory.
const dockerfile = `FROM scratch

LABEL operators.operatorframework.io.bundle.mediatype.v1=registry+v1
LABEL operators.operatorframework.io.bundle.manifests.v1=manifests/
LABEL operators.operatorframework.io.bundle.metadata.v1=metadata/
LABEL operators.operatorframework.io.bundle.package.v1=` + Package + `
LABEL operators.operatorframework.io.bundle.channels.v1=` + Channel + `
LABEL operators.operatorframework.io.bundle.channel.default.v1=` + Channel + `
LABEL operators.operatorframework.io.test.mediatype.v1=scorecard+v1
LABEL operators.operatorframework.io.test.config.v1=tests/scorecard/

COPY manifests /manifests/
COPY metadata /metadata/
COPY tests/scorecard /tests/scorecard/
`

// annotations returns the annotations of the bundle, which are also labels of its image.
func annotations() map[string]string {
	labels := map[string]string{}
	for line := range strings.Lines(dockerfile) {
		if label, found := strings.CutPrefix(line, "LABEL "); found {
			key, value, _ := strings.Cut(strings.TrimSpace(label), "=")
			labels[key] = value
		}
	}
	return labels
}

func iconOf(svg []byte) v1alpha1.Icon {
	return v1alpha1.Icon{Data: base64.StdEncoding.EncodeToString(svg), MediaType: "image/svg+xml"}
}

// summary returns the first sentence of a description, and for a kind without a controller also the sentence that says so.
func summary(kind, description string) string {
	if unimplemented(kind) {
		return strings.Join(strings.Fields(description), " ")
	}
	return firstSentence(description)
}

// unimplemented returns whether a kind has no controller.
func unimplemented(kind string) bool {
	return slices.ContainsFunc(kubeovnv1.UnimplementedKinds, func(k *kubeovnv1.Kind) bool { return k.Kind == kind })
}

func firstSentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if first, _, more := strings.Cut(text, ". "); more {
		return first + "."
	}
	return text
}

// examples returns one object of each kind from config/samples, as JSON. Kinds without a controller have none.
func examples(config string, csv *v1alpha1.ClusterServiceVersion) (string, error) {
	objects, err := samples(filepath.Join(config, "samples"))
	if err != nil {
		return "", err
	}
	list := []any{}
	for _, owned := range csv.Spec.CustomResourceDefinitions.Owned {
		for _, object := range objects {
			if object.GetKind() == owned.Kind {
				list = append(list, object.Object)
				break
			}
		}
	}
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the examples: %w", err)
	}
	return string(text), nil
}

// samples returns the objects of a directory of samples: first those of its kustomization, then all of its files.
func samples(dir string) ([]*unstructured.Unstructured, error) {
	objects, err := render.Objects(dir, "")
	if err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list the samples: %w", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read a sample: %w", err)
		}
		for documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text)); ; {
			var object unstructured.Unstructured
			switch err := documents.Decode(&object.Object); {
			case errors.Is(err, io.EOF):
			case err != nil:
				return nil, fmt.Errorf("decode %s: %w", name, err)
			default:
				objects = append(objects, &object)
				continue
			}
			break
		}
	}
	return objects, nil
}

// encode returns a ClusterServiceVersion as YAML, without the fields that only the cluster sets.
func encode(csv *v1alpha1.ClusterServiceVersion) ([]byte, error) {
	text, err := json.Marshal(csv)
	if err != nil {
		return nil, fmt.Errorf("encode the ClusterServiceVersion: %w", err)
	}
	var content map[string]any
	if err := json.Unmarshal(text, &content); err != nil {
		return nil, fmt.Errorf("decode the ClusterServiceVersion: %w", err)
	}
	delete(content, "status")
	for _, unset := range []string{"apiservicedefinitions", "cleanup"} {
		delete(content["spec"].(map[string]any), unset)
	}
	removeNulls(content)
	if text, err = yaml.Marshal(content); err != nil {
		return nil, fmt.Errorf("encode the ClusterServiceVersion: %w", err)
	}
	return text, nil
}

// removeNulls removes the null values that types of Kubernetes write for unset fields.
func removeNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			if field == nil {
				delete(value, key)
			}
			removeNulls(field)
		}
	case []any:
		for _, item := range value {
			removeNulls(item)
		}
	}
}
