//! The attribute that has an async function compiled once, and a derive that adds nothing.
//!
//! The body of an `async fn` is compiled in every crate that awaits it, with all that it awaits in
//! turn: without a border, each test and each server would compile the engine again. A boxed future
//! is such a border, because its body belongs to the function that makes it.

use proc_macro::TokenStream;
use proc_macro2::Span;
use quote::quote;
use syn::visit_mut::{self, VisitMut};
use syn::{
    FnArg, GenericParam, ItemFn, Lifetime, LifetimeParam, ReceiverKind, ReturnType, TypeReference,
    parse_macro_input,
};

/// Turns `async fn f(..) -> T` into `fn f(..) -> Pin<Box<dyn Future<Output = T> + Send>>`, which
/// borrows what its arguments borrow. The price is one allocation a call: for what is awaited once
/// a command or a txg, not for reads and writes of what is in memory.
#[proc_macro_attribute]
pub fn boxed(_: TokenStream, item: TokenStream) -> TokenStream {
    let mut f = parse_macro_input!(item as ItemFn);
    if f.sig.asyncness.take().is_none() {
        return syn::Error::new_spanned(f.sig.fn_token, "only an async function has a future to box")
            .to_compile_error()
            .into();
    }
    let mut names = NameLifetimes(Vec::new());
    for arg in &mut f.sig.inputs {
        match arg {
            FnArg::Receiver(r) => match &mut r.kind {
                ReceiverKind::Reference(_, lifetime @ None, _) => *lifetime = Some(names.fresh()),
                _ => names.visit_receiver_mut(r),
            },
            FnArg::Typed(t) => names.visit_type_mut(&mut t.ty),
        }
    }
    let future = Lifetime::new("'future", Span::call_site());
    for param in &mut f.sig.generics.params {
        match param {
            GenericParam::Lifetime(l) => l.bounds.push(future.clone()),
            GenericParam::Type(t) => t.bounds.push(syn::parse_quote!(#future)),
            GenericParam::Const(_) => {}
        }
    }
    for name in names.0 {
        let mut param = LifetimeParam::new(name);
        param.bounds.push(future.clone());
        f.sig.generics.params.insert(0, GenericParam::Lifetime(param));
    }
    f.sig.generics.params.insert(0, GenericParam::Lifetime(LifetimeParam::new(future.clone())));
    let output = match &f.sig.output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, ty) => quote!(#ty),
    };
    f.sig.output = syn::parse_quote! {
        -> ::core::pin::Pin<::std::boxed::Box<
            dyn ::core::future::Future<Output = #output> + ::core::marker::Send + #future
        >>
    };
    let (attrs, vis, sig, body) = (&f.attrs, &f.vis, &f.sig, &f.block);
    quote! {
        #(#attrs)*
        #[allow(clippy::type_complexity, reason = "the type is the attribute's, not the author's")]
        #vis #sig {
            ::std::boxed::Box::pin(async move #body)
        }
    }
    .into()
}

/// Derives nothing. It stands where a build for use has no need of what tests derive.
#[proc_macro_derive(Nothing)]
pub fn nothing(_: TokenStream) -> TokenStream {
    TokenStream::new()
}

/// Gives each elided lifetime of the arguments a name, so that the future can be bounded by it.
struct NameLifetimes(Vec<Lifetime>);

impl NameLifetimes {
    fn fresh(&mut self) -> Lifetime {
        let name = Lifetime::new(&format!("'arg{}", self.0.len()), Span::call_site());
        self.0.push(name.clone());
        name
    }
}

impl VisitMut for NameLifetimes {
    fn visit_type_reference_mut(&mut self, ty: &mut TypeReference) {
        if ty.lifetime.is_none() {
            ty.lifetime = Some(self.fresh());
        }
        visit_mut::visit_type_reference_mut(self, ty);
    }

    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if lifetime.ident == "_" {
            *lifetime = self.fresh();
        }
    }

    // The lifetimes of a function type are its own.
    fn visit_type_fn_ptr_mut(&mut self, _: &mut syn::TypeFnPtr) {}

    fn visit_parenthesized_generic_arguments_mut(&mut self, _: &mut syn::ParenthesizedGenericArguments) {}
}
