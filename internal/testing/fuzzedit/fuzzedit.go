// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fuzzedit lets fuzz targets change a valid Kubernetes object by text. A mutation of the text changes one value of the object
// and keeps the rest valid, while a mutation of the object's JSON mostly yields no JSON.
package fuzzedit

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"
)

// Limits of the paths of an edit, so that one line cannot take all memory.
const (
	maxDepth = 12
	maxIndex = 64
)

// Apply returns the object with edits, one per line: a JSON pointer (RFC 6901), "=", and the new value. The value is JSON, or text when it
// is not valid JSON: `/spec/acls/0/match=ip4 && tcp`. Missing fields and list elements on the path are created. A line without a value
// removes the field. The argument does not change.
func Apply(object map[string]any, edits string) (map[string]any, error) {
	edited, err := clone(object)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(edits) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		pointer, text, set := strings.Cut(line, "=")
		path := strings.Split(pointer, "/")
		if path[0] != "" || len(path) < 2 || len(path) > maxDepth {
			return nil, fmt.Errorf("%q is no JSON pointer of at most %d elements", pointer, maxDepth)
		}
		value := any(remove{})
		if set {
			value = valueOf(text)
		}
		if _, err := put(edited, path[1:], value); err != nil {
			return nil, fmt.Errorf("edit %q: %w", line, err)
		}
	}
	return edited, nil
}

// remove is the value of an edit that removes a field.
type remove struct{}

func clone(object map[string]any) (map[string]any, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode the object: %w", err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("decode the object: %w", err)
	}
	return out, nil
}

func valueOf(text string) any {
	var value any
	if json.Unmarshal([]byte(text), &value) != nil {
		return strings.ToValidUTF8(text, "\uFFFD") // as JSON carries it
	}
	return value
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// put returns the container with the value at a path below it.
func put(container any, path []string, value any) (any, error) {
	if len(path) == 0 {
		return value, nil
	}
	key := unescape.Replace(path[0])
	if list, ok := container.([]any); ok {
		return putInList(list, key, path[1:], value)
	}
	fields, ok := container.(map[string]any)
	if !ok {
		if index, err := strconv.Atoi(key); container == nil && err == nil && index == 0 {
			return putInList(nil, key, path[1:], value)
		}
		fields = map[string]any{}
	}
	if _, removes := value.(remove); removes && len(path) == 1 {
		delete(fields, key)
		return fields, nil
	}
	changed, err := put(fields[key], path[1:], value)
	fields[key] = changed
	return fields, err
}

// putInList changes one element of a list. An index beyond its end repeats the last element up to there.
func putInList(list []any, key string, path []string, value any) (any, error) {
	index, err := strconv.Atoi(key)
	if err != nil || index < 0 || index > maxIndex {
		return list, fmt.Errorf("%q is no index from 0 to %d", key, maxIndex)
	}
	if _, removes := value.(remove); removes && len(path) == 0 {
		return list[:min(index, len(list))], nil
	}
	for len(list) <= index {
		var last any
		if len(list) > 0 {
			last = list[len(list)-1]
		}
		list = append(list, last)
	}
	element, err := cloneAny(list[index])
	if err != nil {
		return list, err
	}
	list[index], err = put(element, path, value)
	return list, err
}

// cloneAny returns a copy, because repeated elements share their content.
func cloneAny(value any) (any, error) {
	out, err := clone(map[string]any{"": value})
	return out[""], err
}
