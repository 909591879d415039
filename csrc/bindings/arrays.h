// How arrays cross from Python: as torch tensors, of which this reads addresses, sizes and strides. No header of torch
// is needed, and nothing is checked: the Python ops have checked shapes, dtypes, strides and devices before they call.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>

namespace geowidth {

namespace py = pybind11;

// Where an array's numbers lie; null for None.
struct Address {
  std::uintptr_t value = 0;

  template <typename T>
  operator T*() const {
    return reinterpret_cast<T*>(value);
  }
};

// A matrix with unit column stride; all zero for None. Of a vector: one row.
struct Table {
  Address data;
  int64_t rows = 0, columns = 0;
  int64_t stride = 0;     // elements from one row to the next
  int64_t item_size = 0;  // bytes

  bool is_double() const { return item_size == sizeof(double); }
};

inline Address address_of(py::handle tensor) { return {tensor.attr("data_ptr")().cast<std::uintptr_t>()}; }

inline Table table_of(py::handle tensor) {
  const auto shape = tensor.attr("shape").cast<py::tuple>();
  const bool vector = shape.size() == 1;
  Table table;
  table.data = address_of(tensor);
  table.rows = vector ? 1 : shape[0].cast<int64_t>();
  table.columns = shape[shape.size() - 1].cast<int64_t>();
  table.stride = vector ? 0 : tensor.attr("stride")(0).cast<int64_t>();
  table.item_size = tensor.attr("element_size")().cast<int64_t>();
  return table;
}

}  // namespace geowidth

namespace pybind11::detail {

template <>
struct type_caster<geowidth::Address> {
  PYBIND11_TYPE_CASTER(geowidth::Address, const_name("torch.Tensor | None"));

  bool load(handle source, bool) {
    if (source.is_none()) return true;
    if (!hasattr(source, "data_ptr")) return false;
    value = geowidth::address_of(source);
    return true;
  }
};

template <>
struct type_caster<geowidth::Table> {
  PYBIND11_TYPE_CASTER(geowidth::Table, const_name("torch.Tensor | None"));

  bool load(handle source, bool) {
    if (source.is_none()) return true;
    if (!hasattr(source, "data_ptr")) return false;
    value = geowidth::table_of(source);
    return true;
  }
};

}  // namespace pybind11::detail
